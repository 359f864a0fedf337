//! NATs that lose their connections, and NATs whose address changes.

use std::time::Duration;

use keelway_e2e::{
    FinishedCommand, deadline, outage,
    prober::Prober,
    worker_fleet::{TestCluster, WorkerFleet},
};

/// Three times the stated limits: 5 s from the worker's next packet, and 15 s without traffic.
const WITH_TRAFFIC: Duration = Duration::from_secs(15);
const SILENT: Duration = Duration::from_secs(45);

pub(crate) fn forget_and_move(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let restarts = restarts(cluster);
    let of_w1 = cluster.value("pod/on-w1", "{.status.podIP}");
    // `w2` always has traffic, so its own packets restore the tunnels through its NATs.
    let prober = Prober::start(cluster, "prober", "w2", &of_w1);
    for (what, command) in [("forgets", "forget"), ("moves", "renumber")] {
        for nat in ["nat-b", "nat-c"] {
            let before = outage::now();
            let _ = nat_command(worker_fleet, command, nat).succeeded();
            let gap = outage::longest_between(before, outage::now(), || prober.answers(&cluster.kubectl));
            println!("{:>7} ms  {nat} {what}: longest gap", gap.as_millis());
            assert!(gap < WITH_TRAFFIC, "{nat} {what}: {gap:?}");
        }
    }
    // `w1` sends nothing by itself except in response to the cluster.
    for command in ["forget", "renumber"] {
        let _ = nat_command(worker_fleet, command, "nat-a").succeeded();
        let took = deadline::until("logs of a pod on w1", SILENT, || {
            cluster.kubectl.run(&["logs", "on-w1", "--request-timeout=2s"]).code() == 0
        });
        println!("{:>7} ms  nat-a, {command}: until logs are there", took.as_millis());
    }
    prober.end(&cluster.kubectl);
    assert_eq!(self::restarts(cluster), restarts, "no pod was restarted");
}

fn nat_command(worker_fleet: &WorkerFleet, command: &str, nat: &str) -> FinishedCommand {
    worker_fleet.fleet.keelway.run(&["node", "local", command, "--fleet", &worker_fleet.fleet.fleet, nat], &[])
}

/// Returns how often each pod was restarted, without the prober.
fn restarts(cluster: &TestCluster) -> Vec<String> {
    let path = "{range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{\"\\n\"}{end}";
    let finished = cluster.kubectl.run(&["get", "pods", "-A", "-o", &format!("jsonpath={path}")]).succeeded();
    finished.text().lines().filter(|line| !line.starts_with("prober")).map(str::to_owned).collect()
}
