//! Settings of the machine that are not the cluster's: DNS servers, another pod network, overlapping networks, and what other programs write to the kernel.
//! A join names all of them at once. On a running worker, they are found within seconds.

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet},
};

use crate::udp::status_code;

/// A pod network whose file name sorts before the cluster's.
const POD_NETWORK: &str = r#"mkdir -p /etc/cni/net.d
echo '{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge","bridge":"other0"}]}' > /etc/cni/net.d/05-other.conflist"#;
const NO_POD_NETWORK: &str = "rm /etc/cni/net.d/05-other.conflist";
/// A network of the machine, and a route of another VPN, within the cluster's default ranges.
const NETWORKS: &str = "ip link add lab0 type bridge; ip link set lab0 up; ip address add 10.96.7.1/24 dev lab0
ip route add 10.244.0.0/17 dev lab0 table 52; ip rule add priority 5000 lookup 52";
const NO_NETWORKS: &str = "ip rule delete priority 5000; ip route flush table 52; ip link delete lab0";
/// A DNS server that pods do not reach.
const LOOPBACK_DNS: &str = "cp /etc/resolv.conf /run/resolv.kept; echo nameserver 127.0.0.53 > /etc/resolv.conf";
const USUAL_DNS: &str = "cat /run/resolv.kept > /etc/resolv.conf";

/// What one join finds.
const FOUND: [&str; 4] = ["05-other.conflist", "10.96.7.0/24", "10.244.0.0/17", "127.0.0.53"];

/// What other programs write, and what the worker needs.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("/proc/sys/net/ipv4/ip_forward", "0", "1"),
    ("/proc/sys/net/ipv4/conf/keelway0/rp_filter", "1", "2"),
    ("/proc/sys/net/bridge/bridge-nf-call-iptables", "0", "1"),
];

pub(crate) fn are_checked(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    for change in [POD_NETWORK, NETWORKS, LOOPBACK_DNS] {
        let _ = worker.shell(change).succeeded();
    }
    let refused = worker_fleet.try_to_join(&worker, &worker_fleet.token(cluster));
    assert_eq!(refused.code(), 2, "{}", refused.stderr);
    for found in FOUND {
        assert!(refused.stderr.contains(found), "{found}: {}", refused.stderr);
    }
    for change in [NO_POD_NETWORK, NO_NETWORKS, USUAL_DNS] {
        let _ = worker.shell(change).succeeded();
    }
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    is_good(&worker);

    are_found_later(&worker, cluster, name);
    are_restored(&worker);
}

fn are_found_later(worker: &TestWorker<'_>, cluster: &TestCluster, name: &str) {
    let node = format!("node/{name}");
    let _ = worker.shell(POD_NETWORK).succeeded();
    cluster.kubectl.wait("condition=NetworkUnavailable=True", &[&node]);
    has_event(cluster, name, "PodNetworkConflict");
    let status = worker.run(&["keelway", "node", "status"], &[]);
    assert!(status.code() == 1 && status.text().contains("05-other.conflist"), "{}", status.text());
    let _ = worker.shell(NO_POD_NETWORK).succeeded();
    cluster.kubectl.wait("condition=NetworkUnavailable=False", &[&node]);

    let _ = worker.shell(NETWORKS).succeeded();
    has_event(cluster, name, "RangeConflict");
    let status = worker.run(&["keelway", "node", "status"], &[]);
    assert!(status.code() == 1 && status.text().contains("10.96.7.0/24"), "{}", status.text());
    let _ = worker.shell(NO_NETWORKS).succeeded();
    is_good(worker);
}

/// A worker sets again what it needs.
fn are_restored(worker: &TestWorker<'_>) {
    for (file, other, _) in SETTINGS {
        let _ = worker.shell(&format!("echo {other} > {file}")).succeeded();
    }
    for (file, _, needed) in SETTINGS {
        deadline::until(&format!("{file} is {needed}"), deadline::KUBERNETES, || {
            worker.shell(&format!("cat {file}")).text().trim() == needed
        });
    }
}

fn is_good(worker: &TestWorker<'_>) {
    deadline::until("the status is good", deadline::KUBERNETES, || status_code(worker) == 0);
}

fn has_event(cluster: &TestCluster, node: &str, reason: &str) {
    let selector = format!("involvedObject.name={node},reason={reason}");
    let events = ["get", "events", "--namespace=default", "--output=name", "--field-selector", &selector];
    deadline::until(&format!("an Event {reason} on the Node"), deadline::KUBERNETES, || {
        !cluster.kubectl.run(&events).text().is_empty()
    });
}
