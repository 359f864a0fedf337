//! The life of a cluster, for every way to reach its machines.

use std::fs;

use keelway_api::{Documents, cluster::ClusterSpec};
use keelway_e2e::{Keelway, TestControlPlane};

/// Creates a cluster of this size, and waits until it is settled.
pub(crate) fn born<'a>(driver: &'a Keelway, machines: &[u8], size: &[&str]) -> TestControlPlane<'a> {
    let inject = [&["cluster", "inject", "--name", "c1"][..], size].concat();
    let injected = driver.run(&inject, machines).succeeded().stdout;
    let text = driver.run(&["reconcile"], &injected).succeeded().stdout;
    with_kubeconfig(driver, text)
}

/// Reconciles the cluster to a changed spec. Machines and client stay the same.
pub(crate) fn changed<'a>(plane: &TestControlPlane<'a>, change: impl FnOnce(&mut ClusterSpec)) -> TestControlPlane<'a> {
    let mut documents = Documents::read(&plane.text).unwrap();
    change(&mut documents.clusters.values_mut().next().unwrap().spec);
    let text = plane.keelway.run(&["reconcile"], documents.write().as_bytes()).succeeded().stdout;
    with_kubeconfig(plane.keelway, text)
}

/// Deletes the cluster, and returns the remaining documents, which are of machines.
pub(crate) fn ends(plane: &TestControlPlane<'_>) -> Vec<u8> {
    let deleted = plane.keelway.run(&["cluster", "delete", "--name", "c1"], &plane.text).succeeded().stdout;
    let empty = plane.keelway.run(&["reconcile"], &deleted).succeeded().stdout;
    let left = Documents::read(&empty).unwrap();
    assert!(left.clusters.is_empty() && left.components.is_empty());
    assert!(plane.running().is_empty());
    empty
}

/// Deletes the Hypervisors on which Keelway started agents. The machines then hold nothing of Keelway.
pub(crate) fn started_agents_end(plane: &TestControlPlane<'_>, empty: &[u8]) {
    let started: Vec<_> = plane.machines.iter().filter(|machine| machine.has_started_agent()).collect();
    if started.is_empty() {
        return;
    }
    let names: Vec<&str> = started.iter().map(|machine| machine.name()).collect();
    let deleted = plane.keelway.run(&[&["hypervisor", "delete"], &names[..]].concat(), empty).succeeded().stdout;
    let left = plane.keelway.run(&["reconcile"], &deleted).succeeded().stdout;
    let left = Documents::read(&left).unwrap();
    assert!(left.hypervisors.keys().all(|name| !names.contains(&name.as_str())));
    for machine in started {
        assert!(machine.ids().is_empty(), "{}", machine.name());
        for path in ["lib/keelway", "log/keelway", "lib/keelway-agent", "log/keelway-agent"] {
            let path = machine.path(&format!("/var/{path}"));
            assert!(!path.exists(), "{}", path.display());
        }
    }
}

pub(crate) fn with_kubeconfig(driver: &Keelway, text: Vec<u8>) -> TestControlPlane<'_> {
    let kubeconfig = driver.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(driver.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    fs::write(driver.directory().join("c1.yaml"), &text).unwrap();
    TestControlPlane::new(driver, text, "c1.kubeconfig")
}
