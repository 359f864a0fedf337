//! A worker reboots, and its service manager starts its daemon. Nothing else is needed.

use std::{path::Path, time::Instant};

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{
    WORKERS, apart,
    pods::{self, Pods},
};

pub(crate) fn of_a_worker(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let [(other, _), (name, _)] = WORKERS;
    let worker = worker_fleet.worker(name);
    let (status, containers, addresses) = (worker.status(), pods::on(cluster, name), addresses(cluster, name));
    assert!(containers.values().all(|containers| !containers.is_empty()), "not all pods run: {containers:?}");

    let began = Instant::now();
    worker.local("reboot");
    println!("{:>7} ms  {name} has rebooted", began.elapsed().as_millis());
    worker.start_daemon(Path::new("keelway"));
    let _ = worker.another_daemon(&status);
    // Add-ons that cannot reach the API immediately are restarted with the back-off of Kubernetes.
    for (what, namespaces) in [("pods of people", &["default"][..]), ("pods", &["default", "kube-system"])] {
        let these: Pods = containers
            .clone()
            .into_iter()
            .filter(|([namespace, ..], _)| namespaces.contains(&namespace.as_str()))
            .collect();
        deadline::until(&format!("{what} run again"), deadline::KUBERNETES, || {
            are_anew(&these, &pods::on(cluster, name))
        });
        println!("{:>7} ms  from the reboot until all {} {what} run again", began.elapsed().as_millis(), these.len());
    }
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{name}")]);
    assert_eq!(self::addresses(cluster, name), addresses, "it has another address");
    apart::meet(cluster, name, other);
    apart::meet(cluster, other, name);
    println!("{:>7} ms  from the reboot until its pods reach others, and others them", began.elapsed().as_millis());
}

/// Returns whether the same pods have other containers.
fn are_anew(before: &Pods, now: &Pods) -> bool {
    before
        .iter()
        .all(|(pod, before)| now.get(pod).is_some_and(|now| now.len() == before.len() && now.is_disjoint(before)))
}

/// Returns the addresses in the Node and in the peer.
fn addresses(cluster: &TestCluster, name: &str) -> [String; 2] {
    let of_node = "{.status.addresses[?(@.type==\"InternalIP\")].address}";
    let of_peer = "{.status.addresses[*]}";
    [cluster.value(&format!("node/{name}"), of_node), cluster.value(&format!("wireguardpeer/{name}"), of_peer)]
}
