//! Passes that are interrupted on real machines, and that restart components: there are no agents.

use std::fs;

use keelway_api::Documents;
use keelway_e2e::{TestControlPlane, TestFleet, TestMachine, host::on_own_host, interruption::cut_off};
use rustix::process::Signal;

use crate::recovery;

#[test]
fn interrupted() {
    on_own_host("interrupted::interrupted", scenario);
}

/// The failpoints at which the creation of a cluster is interrupted, in the order in which the program reaches them. After SIGTERM, the program
/// continues to the end of the current effect.
const BIRTH: [(Signal, &str); 10] = [
    (Signal::KILL, "saves"),
    (Signal::KILL, "saved"),
    (Signal::KILL, "begins take the machine"),
    (Signal::TERM, "done take the machine"),
    (Signal::KILL, "begins create sandbox"),
    (Signal::KILL, "done create sandbox"),
    (Signal::KILL, "begins create container etcd"),
    (Signal::TERM, "done start container etcd"),
    (Signal::KILL, "binds"),
    (Signal::KILL, "bound"),
];
/// The failpoints at which the deletion is interrupted.
const END: [(Signal, &str); 4] = [
    (Signal::KILL, "done stop sandbox"),
    (Signal::KILL, "begins remove sandbox"),
    (Signal::TERM, "done remove files, data and logs"),
    (Signal::KILL, "begins leave the machine"),
];

fn scenario() {
    let mut world = TestFleet::new("e2eint");
    let made = world.create_two_without_agents();
    let keelway = &world.keelway;
    let mut text = keelway.run(&["cluster", "inject", "--name", "c1"], &made).succeeded().stdout;
    for point in BIRTH {
        text = cut_off(keelway, point, text);
    }
    text = keelway.run(&["reconcile"], &text).succeeded().stdout;
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    let plane = TestControlPlane::new(keelway, text.clone(), "c1.kubeconfig");
    assert_eq!(plane.kubectl.run(&["get", "--raw", "/readyz"]).succeeded().text(), "ok");
    assert_eq!(plane.running().len(), 7);
    for machine in &plane.machines {
        assert_eq!(machine.sandboxes(), (machine.running().len(), 0), "no pod was made twice");
    }
    recovery::container(&plane, "kube-scheduler-0");
    recovery::sandbox(&plane, "ingress-0");

    text = keelway.run(&["cluster", "delete", "--name", "c1"], &text).succeeded().stdout;
    for point in END {
        text = cut_off(keelway, point, text);
    }
    text = keelway.run(&["reconcile"], &text).succeeded().stdout;
    let left = Documents::read(&text).unwrap();
    assert!(left.clusters.is_empty() && left.components.is_empty() && left.secrets.is_empty());
    for machine in TestMachine::all(&left) {
        assert_eq!(machine.sandboxes(), (0, 0));
        assert!(!machine.path("/var/lib/keelway").exists());
    }
}
