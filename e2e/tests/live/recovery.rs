//! If a component is killed, only that component is restarted: by the machine's agent, or by the next pass if there is no agent.

use std::collections::{BTreeMap, BTreeSet};

use keelway_e2e::{RunningComponent, TestControlPlane, TestMachine, deadline, machine::find, process};

/// Returns the components that must not restart while this component is away. Controllers are not among them, because they exit if they cannot renew
/// their Lease.
fn bystanders(component: &str) -> &'static [&'static str] {
    match component {
        "etcd-0" => &["ingress-0", "kube-apiserver-0"],
        "kube-apiserver-0" => &["ingress-0", "etcd-0"],
        _ => &["etcd-0", "kube-apiserver-0"],
    }
}

/// Kills the process of the container with SIGKILL.
pub(crate) fn container(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, seen) = find(&plane.machines, component);
    let before = plane.running();
    process::kill(machine.container_pid(&seen.container));
    let now = comes_back(plane, (component, machine), &before);
    assert_eq!(now.sandbox, seen.sandbox, "a sandbox that is well is kept");
}

/// Stops the sandbox by a call to the runtime.
pub(crate) fn sandbox(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, seen) = find(&plane.machines, component);
    let before = plane.running();
    machine.stop_sandbox(&seen.sandbox);
    let now = comes_back(plane, (component, machine), &before);
    assert_ne!(now.sandbox, seen.sandbox);
    assert_eq!(machine.sandboxes(), (machine.sandboxes_wanted(), 0), "nothing is left of the old one");
}

/// Waits until the component runs again. If there is an agent, the following pass has nothing to do and waits until all components are ready.
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
    let finished = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    println!("{:>7} ms  until {component} was back", finished.took.as_millis());
    let after = plane.running();
    let names = |running: &BTreeMap<String, RunningComponent>| running.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&after), plane.components().into_keys().collect());
    for bystander in bystanders(component).iter().filter(|bystander| **bystander != component) {
        assert_eq!(after[*bystander], before[*bystander], "{bystander}");
    }
    assert_ne!(after[component].container, before[component].container);
    after[component].clone()
}
