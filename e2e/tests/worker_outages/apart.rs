//! Two workers, each without access to the gateway that the other one uses.

use std::time::Duration;

use keelway_e2e::{
    deadline, outage,
    prober::Prober,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{
    WORKERS,
    clients::{self, Window},
    public::{self, BACK, Public, tunnel},
};

/// Drops all packets to an address and from it.
const CUT: &str = "
add table ip apart
add chain ip apart output { type filter hook output priority 0; }
add rule ip apart output ip daddr ADDRESS drop
add chain ip apart input { type filter hook input priority 0; }
add rule ip apart input ip saddr ADDRESS drop";

/// Returns the longest time for which pods had no response.
pub(crate) fn still_meet(worker_fleet: &WorkerFleet, cluster: &TestCluster, probers: &[Prober]) -> Duration {
    let [(w1, _), (w2, _)] = WORKERS;
    let public = public::all(worker_fleet, cluster);
    let [one, other] = public.as_slice() else { panic!("there are {} ingresses", public.len()) };
    // Each worker with the machine that it cannot reach, and the machine that it still reaches.
    let parts = [(w1, one, other), (w2, other, one)];
    let began = outage::now();
    for (worker, lost, _) in parts {
        let rules = CUT.replace("ADDRESS", &lost.address.ip().to_string());
        let _ = worker_fleet.worker(worker).run(&["nft", "-f", "-"], rules.as_bytes()).succeeded();
    }
    let took = deadline::until("each worker has the other gateway", BACK, || {
        parts.iter().all(|(worker, lost, kept)| {
            let now = worker_fleet.worker(worker).status();
            tunnel(&now, lost)["answers"] == false && tunnel(&now, kept)["active"] == true
        })
    });
    println!("{:>7} ms  until each worker has the other gateway", took.as_millis());
    let window = Window { since: began, until: outage::now() };
    let gap = clients::gaps("workers reach different gateways only", &window, cluster, probers);
    for Public { context, .. } in [one, other] {
        let by = cluster.by(context);
        meet(&by, w1, w2);
        meet(&by, w2, w1);
    }

    for (worker, ..) in parts {
        let _ = worker_fleet.worker(worker).shell("nft delete table ip apart").succeeded();
    }
    public::all_workers(worker_fleet, "both gateways answer again", deadline::KUBERNETES, |now| {
        [one, other].iter().all(|public| tunnel(now, public)["answers"] == true)
    });
    gap
}

/// Asserts that a pod of one worker reaches a pod of the other, and that the logs of that pod can be read.
pub(crate) fn meet(cluster: &TestCluster, from: &str, to: &str) {
    let address = cluster.value(&format!("pod/on-{to}"), "{.status.podIP}");
    let asks = format!("/agnhost connect --timeout=2s {address}:8080");
    deadline::until(&format!("a pod of {from} reaches one of {to}"), BACK, || {
        cluster.shell(&format!("on-{from}"), &asks).code() == 0
    });
    let logs = cluster.kubectl.run(&["logs", &format!("on-{to}"), "--request-timeout=10s"]).succeeded();
    assert!(!logs.stdout.is_empty(), "the pod of {to} has written nothing");
}
