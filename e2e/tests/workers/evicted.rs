//! A running worker is evicted.

use std::collections::BTreeSet;

use keelway_api::{Time, jiff::Timestamp};
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet},
};
use serde_json::Value;

use crate::pods;

/// How long its last certificate stays valid at most: `workerTTL`, minus an hour for the time that passes meanwhile.
const HOURS: i64 = 720 - 1;

/// Evicts a worker, and returns its addresses.
pub(crate) fn from(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) -> BTreeSet<String> {
    let worker = worker_fleet.worker(name);
    let others: Vec<&str> = cluster.workers.iter().copied().filter(|other| *other != name).collect();
    let peer = cluster.value(&format!("wireguardpeer/{name}"), "{.status.addresses[*]}");
    let addresses: BTreeSet<String> = peer.split(' ').map(str::to_owned).collect();
    let pod = cluster.value(&format!("pod/on-{name}"), "{.status.podIP}");
    let other = cluster.value(&format!("pod/on-{}", others[0]), "{.status.podIP}");
    let gateways = gateways(&worker);
    assert_eq!(gateways.len(), 2, "{gateways:?}");
    assert!(gateways.iter().all(|gateway| is_answered(&worker, gateway)), "each gateway answers");
    let talks = |from: &str, to: &str| cluster.shell(from, &format!("/agnhost connect --timeout=2s {to}:8080"));
    let _ = talks(&format!("on-{}", others[0]), &pod).succeeded();
    let leaves = || worker.shell(&format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{other}/8080'")).code() == 0;
    assert!(leaves(), "{name} reaches a pod of {}", others[0]);

    let _ = worker_fleet.keelway(&["node", "evict", name, "--cluster", cluster.name]).succeeded();
    is_gone(cluster, name);
    let took = deadline::until("no gateway answers", deadline::KUBERNETES, || {
        gateways.iter().all(|gateway| !is_answered(&worker, gateway))
    });
    println!("{:>7} ms  until no gateway answers {name}", took.as_millis());
    // The other worker drops a direct path after the gateways no longer introduce it.
    let took = deadline::until("no pod is reached directly", deadline::KUBERNETES, || !leaves());
    println!("{:>7} ms  until {name} reaches no pod", took.as_millis());
    assert_ne!(talks(&format!("on-{}", others[0]), &pod).code(), 0, "a pod on {name} is reached");

    rests(cluster, name, &addresses);
    pods::by_address(cluster, &others);
    // The kubelet still runs and tries to register again.
    is_gone(cluster, name);
    addresses
}

fn is_gone(cluster: &TestCluster, name: &str) {
    let left = cluster.kubectl.run(&["get", "nodes,wireguardpeers", "-o", "name"]).succeeded();
    assert!(!left.text().lines().any(|line| line.ends_with(&format!("/{name}"))), "{}", left.text());
}

/// Returns the addresses of gateways from the worker's files.
fn gateways(worker: &TestWorker<'_>) -> Vec<String> {
    let cluster = worker.run(&["cat", "/var/lib/keelway-node/cluster.json"], &[]).succeeded().json();
    let endpoints = cluster["endpoints"].as_array().unwrap().iter();
    endpoints.map(|endpoint| endpoint["gateway"]["addresses"][0].as_str().unwrap().to_owned()).collect()
}

/// A gateway with the worker as a peer refuses the connection inside the tunnel. Any other gateway does not respond.
fn is_answered(worker: &TestWorker<'_>, gateway: &str) -> bool {
    let finished = worker.shell(&format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{gateway}/9' 2>&1 || true")).succeeded();
    finished.text().contains("refused")
}

/// No other worker gets these addresses as long as a certificate of the evicted worker could be valid.
fn rests(cluster: &TestCluster, name: &str, addresses: &BTreeSet<String>) {
    let hold = |until: &Value| {
        let until: Time = serde_json::from_value(until.clone()).unwrap();
        until.0.duration_since(Timestamp::now()).as_hours() >= HOURS
    };
    let tombstone = cluster.kubectl.get(&["tombstone", name]);
    let kept = tombstone["spec"]["addresses"].as_array().unwrap().iter().map(|address| address.as_str().unwrap());
    assert_eq!(kept.map(str::to_owned).collect::<BTreeSet<_>>(), *addresses);
    assert!(hold(&tombstone["spec"]["until"]), "{tombstone}");
    deadline::until("the claims of its addresses rest", deadline::KUBERNETES, || {
        let claims = cluster.kubectl.get(&["addressclaims"]);
        let own: Vec<&Value> =
            claims["items"].as_array().unwrap().iter().filter(|claim| claim["spec"]["node"] == name).collect();
        own.len() == addresses.len()
            && own.iter().all(|claim| {
                let until = &claim["spec"]["restsUntil"];
                !until.is_null() && hold(until)
            })
    });
}
