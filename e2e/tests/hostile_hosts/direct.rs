//! Two workers in one network send each other packets without a gateway. Once that network no longer carries them, a gateway does.

use std::{net::SocketAddr, time::Duration};

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet, serves},
};
use serde_json::Value;

use crate::{
    CLEAN,
    direct_path::{self, is_direct, path},
    narrow::transfer,
};

/// Three times the time after which a path without probes is lost.
const BACK: Duration = Duration::from_secs(15);
/// More than the checks of gateways need meanwhile, and less than one transfer.
const LITTLE: u64 = 500_000;

pub(crate) fn is_the_path_in_one_network(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let (worker, clean) = (worker_fleet.worker(name), worker_fleet.worker(CLEAN));
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    let pod = format!("on-{name}");
    cluster.start(&format!("app={pod}"), &[serves(&pod, &pod, name)]);
    let address = cluster.value(&format!("pod/{pod}"), "{.status.podIP}");
    let reaches = || cluster.shell("on-clean", &format!("/agnhost connect --timeout=1s {address}:8080")).code() == 0;

    let took = deadline::until("both ends use a direct path", deadline::KUBERNETES, || {
        reaches() && is_direct(&worker, &clean) && is_direct(&clean, &worker)
    });
    println!("{:>7} ms  until both ends use a direct path", took.as_millis());
    let before = sent(&worker, &clean);
    assert!(transfer(cluster, "on-clean", &pod) > 3_000_000);
    // The daemon observes the tunnels every two seconds, when it also sends checks through them.
    let meanwhile = sent(&worker, &clean);
    deadline::until("the bytes of the transfer are observed", deadline::KUBERNETES, || {
        let now = sent(&worker, &clean);
        now.direct - before.direct > 3_000_000 && now.by_gateways > meanwhile.by_gateways
    });
    let after = sent(&worker, &clean);
    assert!(after.by_gateways - before.by_gateways < LITTLE, "{before:?} {after:?}");

    let endpoint: SocketAddr = path(&worker, &clean).unwrap()["endpoint"].as_str().unwrap().parse().unwrap();
    direct_path::cut(&worker, endpoint.ip());
    let took = deadline::until("a gateway carries the packets", BACK, reaches);
    println!("{:>7} ms  until a gateway carries the packets", took.as_millis());
    assert!(!is_direct(&worker, &clean));
    let _ = cluster.kubectl.run(&["delete", "pod", &pod, "--wait=false"]).succeeded();
}

#[derive(Debug)]
struct SentBytes {
    direct: u64,
    by_gateways: u64,
}

fn sent(worker: &TestWorker<'_>, other: &TestWorker<'_>) -> SentBytes {
    let bytes = |value: &Value| value["sentBytes"].as_u64().unwrap();
    let tunnels = worker.status()["tunnels"].as_array().unwrap().iter().map(bytes).sum();
    SentBytes { direct: bytes(&path(worker, other).unwrap()), by_gateways: tunnels }
}
