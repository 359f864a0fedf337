//! UDP from a worker is blocked, while it runs and while it joins.

use std::time::Duration;

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet},
};

/// A chain that drops the worker's UDP, as a firewall between it and the gateways would.
const BLOCK: &str = "nft add table inet blocked
nft add chain inet blocked out '{ type filter hook output priority 0; }'
nft add rule inet blocked out meta l4proto udp drop";
const UNBLOCK: &str = "nft delete table inet blocked";

/// How long a join may take until it reports that no gateway responds. `--timeout` is five minutes.
const FOUND: Duration = Duration::from_secs(60);

pub(crate) fn is_blocked(setting: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let (worker, node) = (setting.worker(name), format!("node/{name}"));
    let unavailable = |is: &str| {
        cluster.kubectl.wait(&format!("condition=NetworkUnavailable={is}"), &[&node]);
    };
    setting.join_one(cluster, name, &setting.token(cluster));
    unavailable("False");
    let _ = worker.shell(BLOCK).succeeded();
    unavailable("True");
    let found = condition(cluster, name);
    assert!(found.contains("allow UDP from this machine to"), "{found}");
    deadline::until("the taint", deadline::KUBERNETES, || taints(cluster, name).contains("network-unavailable"));
    let events = cluster.kubectl.run(&["get", "events", "-o", "jsonpath={.items[*].reason}"]).succeeded();
    assert!(events.text().contains("NoGatewayResponds"), "{}", events.text());
    let status = worker.run(&["keelway", "node", "status"], &[]);
    assert!(status.code() == 1 && status.text().contains("No gateway responds"), "{}", status.text());

    let _ = worker.shell(UNBLOCK).succeeded();
    unavailable("False");
    deadline::until("no taint", deadline::KUBERNETES, || !taints(cluster, name).contains("network-unavailable"));
    assert_eq!(status_code(&worker), 0);

    joins(setting, cluster, &worker);
    unavailable("False");
    cluster.kubectl.wait("condition=Ready", &[&node]);
}

/// The join ends with what it found and what to open. Once UDP passes, the worker is ready without another join.
fn joins(setting: &WorkerFleet, cluster: &TestCluster, worker: &TestWorker<'_>) {
    let _ = worker.run(&["keelway", "node", "leave"], &[]).succeeded();
    let _ = worker.shell(BLOCK).succeeded();
    let joined = setting.try_to_join(worker, &setting.token(cluster));
    assert!(joined.code() == 1 && joined.stderr.contains("allow UDP from this machine to"), "{}", joined.stderr);
    assert!(joined.took < FOUND, "{:?}", joined.took);
    let _ = worker.shell(UNBLOCK).succeeded();
}

fn condition(cluster: &TestCluster, name: &str) -> String {
    cluster.value(&format!("node/{name}"), "{.status.conditions[?(@.type==\"NetworkUnavailable\")].message}")
}

fn taints(cluster: &TestCluster, name: &str) -> String {
    cluster.value(&format!("node/{name}"), "{.spec.taints[*].key}")
}

pub(crate) fn status_code(worker: &TestWorker<'_>) -> i32 {
    worker.run(&["keelway", "node", "status"], &[]).code()
}
