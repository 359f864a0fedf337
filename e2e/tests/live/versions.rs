//! Each program is the one that its release names.

use keelway_api::release;
use keelway_e2e::{ControlPlane, machine::find};

/// Asked in the containers that run.
pub(crate) fn programs_answer(plane: &ControlPlane<'_>) {
    let release = release::newest();
    let etcd = release.etcd.split('-').next().unwrap();
    let kubernetes = format!("Kubernetes v{}", release.kubernetes);
    for (component, command, image, expected) in [
        ("etcd-0", &["etcd", "--version"], release.etcd_image(None), format!("etcd Version: {etcd}")),
        kubernetes_program("kube-apiserver", &["kube-apiserver", "--version"], &kubernetes),
        kubernetes_program("kube-controller-manager", &["kube-controller-manager", "--version"], &kubernetes),
        kubernetes_program("kube-scheduler", &["kube-scheduler", "--version"], &kubernetes),
        (
            "ingress-0",
            &["haproxy", "-v"],
            release::haproxy_image(None),
            format!("HAProxy version {}", release::HAPROXY),
        ),
    ] {
        let (machine, running) = find(&plane.machines, component);
        assert_eq!(running.image, image);
        let said = machine.exec(&running.container, command);
        let first = said.lines().next().unwrap();
        let rest = first.strip_prefix(&expected).unwrap_or_else(|| panic!("{component}: {first}"));
        assert!(!rest.starts_with(|next: char| next.is_ascii_digit() || next == '.'), "{first}");
    }
}

fn kubernetes_program(
    program: &'static str,
    command: &'static [&'static str; 2],
    expected: &str,
) -> (&'static str, &'static [&'static str; 2], String, String) {
    let component = match program {
        "kube-apiserver" => "kube-apiserver-0",
        "kube-controller-manager" => "kube-controller-manager-0",
        _ => "kube-scheduler-0",
    };
    (component, command, release::newest().kubernetes_image(program, None), expected.to_owned())
}
