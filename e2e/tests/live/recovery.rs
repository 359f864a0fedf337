//! What dies is brought back by the next pass, and only that.

use std::collections::BTreeSet;

use keelway_e2e::{ControlPlane, Running, machine::find, process};

use crate::workload::secret_is_there;

/// What goes on while this component is away. Controllers end by themselves where they cannot renew their lease.
fn bystanders(component: &str) -> &'static [&'static str] {
    match component {
        "etcd-0" => &["ingress-0", "kube-apiserver-0"],
        "kube-apiserver-0" => &["ingress-0", "etcd-0"],
        _ => &["etcd-0", "kube-apiserver-0"],
    }
}

/// The container's process, by the signal that none can catch.
pub(crate) fn container(plane: &ControlPlane<'_>, component: &str) {
    let (machine, seen) = find(&plane.machines, component);
    process::kill(machine.container_pid(&seen.container));
    let now = comes_back(plane, component, &seen);
    assert_eq!(now.sandbox, seen.sandbox, "a sandbox that is well is kept");
}

/// The sandbox, by the runtime's own call.
pub(crate) fn sandbox(plane: &ControlPlane<'_>, component: &str) {
    let (machine, seen) = find(&plane.machines, component);
    machine.stop_sandbox(&seen.sandbox);
    let now = comes_back(plane, component, &seen);
    assert_ne!(now.sandbox, seen.sandbox);
    let ready = machine.running().len();
    assert_eq!(machine.sandboxes(), (ready, 0), "nothing is left of the old one");
}

fn comes_back(plane: &ControlPlane<'_>, component: &str, seen: &Running) -> Running {
    let before = plane.running();
    let planned = plane.keelway.run(&["plan", "--exit-code"], &plane.text);
    assert_eq!(planned.code(), 4, "{}", planned.text());
    let ran = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    println!("{:>7} ms  until {component} was back", ran.took.as_millis());
    let after = plane.running();
    let names =
        |running: &std::collections::BTreeMap<String, Running>| running.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&after), plane.components().into_keys().collect());
    for bystander in bystanders(component).iter().filter(|bystander| **bystander != component) {
        assert_eq!(after[*bystander], before[*bystander], "{bystander}");
    }
    assert_ne!(after[component].container, seen.container);
    secret_is_there(plane);
    after[component].clone()
}
