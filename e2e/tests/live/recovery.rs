//! What dies is brought back, and only that: by the machine's agent at once, or by the next pass where there is none.

use std::collections::{BTreeMap, BTreeSet};

use keelway_e2e::{RunningComponent, TestControlPlane, TestMachine, deadline, machine::find, process};

/// What goes on while this component is away. Controllers end by themselves where they cannot renew their lease.
fn bystanders(component: &str) -> &'static [&'static str] {
    match component {
        "etcd-0" => &["ingress-0", "kube-apiserver-0"],
        "kube-apiserver-0" => &["ingress-0", "etcd-0"],
        _ => &["etcd-0", "kube-apiserver-0"],
    }
}

/// The container's process, by the signal that none can catch.
pub(crate) fn container(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, seen) = find(&plane.machines, component);
    let before = plane.running();
    process::kill(machine.container_pid(&seen.container));
    let now = comes_back(plane, (component, machine), &before);
    assert_eq!(now.sandbox, seen.sandbox, "a sandbox that is well is kept");
}

/// The sandbox, by the runtime's own call.
pub(crate) fn sandbox(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, seen) = find(&plane.machines, component);
    let before = plane.running();
    machine.stop_sandbox(&seen.sandbox);
    let now = comes_back(plane, (component, machine), &before);
    assert_ne!(now.sandbox, seen.sandbox);
    assert_eq!(machine.sandboxes(), (machine.sandboxes_wanted(), 0), "nothing is left of the old one");
}

/// A pass that comes after an agent finds nothing to do, and waits until all is well.
fn comes_back(
    plane: &TestControlPlane<'_>,
    (component, machine): (&str, &TestMachine),
    before: &BTreeMap<String, RunningComponent>,
) -> RunningComponent {
    if machine.has_agent() {
        let is_new = || plane.running().get(component).is_some_and(|now| now.container != before[component].container);
        let took = deadline::until("a new container", deadline::KUBERNETES, is_new);
        println!("{:>7} ms  until {component} ran again", took.as_millis());
    } else {
        let planned = plane.keelway.run(&["plan", "--exit-code"], &plane.text);
        assert_eq!(planned.code(), 4, "{}", planned.text());
    }
    let ran = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    println!("{:>7} ms  until {component} was back", ran.took.as_millis());
    let after = plane.running();
    let names = |running: &BTreeMap<String, RunningComponent>| running.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&after), plane.components().into_keys().collect());
    for bystander in bystanders(component).iter().filter(|bystander| **bystander != component) {
        assert_eq!(after[*bystander], before[*bystander], "{bystander}");
    }
    assert_ne!(after[component].container, before[component].container);
    after[component].clone()
}
