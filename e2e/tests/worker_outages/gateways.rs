//! Gateways that are restarted while the API server is down. They read their peers from disk.

use std::time::Duration;

use keelway_api::{Component, role::Role};
use keelway_e2e::{
    TestMachine, deadline, outage,
    prober::Prober,
    process,
    worker_fleet::{TestCluster, WorkerFleet},
};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    clients::{self, Window},
    public::BACK,
};

/// Returns the longest time for which pods had no response.
pub(crate) fn come_back_from_disk(worker_fleet: &WorkerFleet, cluster: &TestCluster, probers: &[Prober]) -> Duration {
    let pid =
        |component: &Component, machine: &TestMachine| machine.container_pid(&machine.of(component).unwrap().container);
    let servers = worker_fleet.each(cluster, Role::KubeApiserver, pid);
    let gateways = worker_fleet.each(cluster, Role::Gateway, pid);
    let of_w2 = cluster.value("pod/on-w2", "{.status.podIP}");
    let agreed = || crate::WORKERS.map(|(name, _)| handshakes(&worker_fleet.worker(name).status()));
    let before = agreed();
    let began = outage::now();
    for pid in &servers {
        process::signal(*pid, Signal::STOP);
    }
    for pid in &gateways {
        process::kill(*pid);
    }
    // A restarted gateway has no session keys, so every worker makes a new handshake.
    let took = deadline::until("all workers agree on keys with all gateways anew", BACK, || {
        before.iter().flatten().zip(agreed().iter().flatten()).all(|(before, now)| before != now)
    });
    println!("{:>7} ms  until all workers agreed on keys with all gateways anew", took.as_millis());
    let took = deadline::until("a pod of another worker answers", BACK, || {
        let asks = format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{of_w2}/8080'");
        worker_fleet.worker("w1").shell(&asks).code() == 0
    });
    println!("{:>7} ms  until a pod of another worker answers", took.as_millis());
    let answer = cluster.kubectl.run(&["get", "--raw", "/readyz", "--request-timeout=1s"]);
    assert_ne!(answer.code(), 0, "the API was down all the while");

    for pid in &servers {
        process::signal(*pid, Signal::CONT);
    }
    let window = Window { since: began, until: outage::now() };
    clients::gaps("all gateways were killed while the API was down", &window, cluster, probers)
}

/// Returns the time of a worker's last handshake with each gateway.
fn handshakes(status: &Value) -> Vec<Value> {
    status["tunnels"].as_array().unwrap().iter().map(|tunnel| tunnel["lastHandshake"].clone()).collect()
}
