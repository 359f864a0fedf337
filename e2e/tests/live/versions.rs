//! Each program has the version that its release names.

use keelway_api::{
    argument::{self, ArgumentType},
    release,
    role::Role,
};
use keelway_e2e::{TestControlPlane, machine::find};

/// Runs the programs in the running containers with their version flags.
pub(crate) fn programs_answer(plane: &TestControlPlane<'_>) {
    let release = release::newest();
    let etcd = release.row.etcd.split('-').next().unwrap();
    let kubernetes = format!("Kubernetes v{release}");
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
        (
            "gateway-0",
            &["/keelway-cluster-controller", "--version"],
            release::cluster_controller_image(None, release::KEELWAY),
            format!("keelway-cluster-controller {}", release::KEELWAY.trim_start_matches('v')),
        ),
    ] {
        let (machine, running) = find(&plane.machines, component);
        assert_eq!(running.image, image);
        let output = machine.exec(&running.container, command);
        let first = output.lines().next().unwrap();
        let rest = first.strip_prefix(&expected).unwrap_or_else(|| panic!("{component}: {first}"));
        assert!(!rest.starts_with(|next: char| next.is_ascii_digit() || next == '.'), "{first}");
    }
}

/// Each argument that clusters can set is an argument of its program, of the type against which its values are checked.
pub(crate) fn programs_take_arguments(plane: &TestControlPlane<'_>) {
    for role in [Role::KubeApiserver, Role::KubeControllerManager, Role::KubeScheduler] {
        let (machine, running) = find(&plane.machines, &format!("{role}-0"));
        let help = machine.exec(&running.container, &[&role.to_string(), "--help"]);
        for argument in argument::of_role(role) {
            let types: &[&str] = match argument.form {
                ArgumentType::Number { .. } => &["int", "int32", "float32", "Level"],
                ArgumentType::Decimal { .. } => &["float", "float32"],
                ArgumentType::Duration => &["duration"],
                ArgumentType::Ports => &["portRange"],
                ArgumentType::Choice(_) => &["string"],
                ArgumentType::Metrics => &["strings"],
            };
            let flag = format!("--{} ", argument.name);
            let found = help.lines().find_map(|line| line.trim_start().trim_start_matches("-v, ").strip_prefix(&flag));
            let found = found.and_then(|rest| rest.split_whitespace().next());
            assert!(found.is_some_and(|found| types.contains(&found)), "{role} {flag}: {found:?}");
        }
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
