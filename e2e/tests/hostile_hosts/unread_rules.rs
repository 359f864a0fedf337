//! Firewalls that nftables does not show, or whose rules cannot be evaluated: a table of `iptables-legacy`, and a match that the worker does not know.

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet, serves},
};

use crate::udp::status_code;

/// Whether a packet has this mark depends on what other programs do to it.
const UNKNOWN: &str = "nft 'table inet owner { chain f { type filter hook forward priority 0; iifname cni0 meta mark 0 counter drop; }; }'";

pub(crate) fn are_found(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    are_of_legacy(worker_fleet, cluster, name);
    are_uncertain(worker_fleet, cluster, name);
}

fn are_of_legacy(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let _ = worker.shell("iptables-legacy -P FORWARD DROP").succeeded();
    let joined = worker_fleet.try_to_join(&worker, &worker_fleet.token(cluster));
    assert_eq!(joined.code(), 2, "{}", joined.stderr);
    assert!(joined.stderr.contains("chain iptables-legacy filter FORWARD drops packets"), "{}", joined.stderr);
    assert!(joined.stderr.contains("sudo iptables-legacy -I FORWARD -i cni0 -j ACCEPT"), "{}", joined.stderr);
    let _ = worker.shell("iptables-legacy -P FORWARD ACCEPT").succeeded();
}

fn are_uncertain(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let (worker, node, pod) = (worker_fleet.worker(name), format!("node/{name}"), format!("on-{name}"));
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    // The bridge exists once the worker runs a pod.
    cluster.kubectl.apply(&serves(&pod, "unread", name));
    cluster.kubectl.wait("condition=Ready", &[&format!("pod/{pod}")]);
    deadline::until("the status is good", deadline::KUBERNETES, || status_code(&worker) == 0);
    let _ = worker.shell(UNKNOWN).succeeded();
    cluster.kubectl.wait("condition=NetworkUnavailable=True", &[&node]);
    let status = worker.run(&["keelway", "node", "status"], &[]);
    assert!(status.code() == 1 && status.text().contains("onnections from pods to the gateway"), "{}", status.text());
    let _ = worker.shell("nft delete table inet owner").succeeded();
    cluster.kubectl.wait("condition=NetworkUnavailable=False", &[&node]);
    assert_eq!(status_code(&worker), 0);
    let _ = cluster.kubectl.run(&["delete", "pod", &pod, "--wait=false"]).succeeded();
    let _ = worker.run(&["keelway", "node", "leave", "--force"], &[]).succeeded();
    let links = worker.shell("ip -brief link").succeeded();
    assert!(!links.text().contains("kwprobe0") && !links.text().contains("cni0"), "{}", links.text());
}
