//! A worker's network allows nothing but TCP to port 443, while it runs and while it joins: its tunnels use TLS. If gateways accept no streams either,
//! the worker reports that nothing gets through.

use std::{process::Command, time::Duration};

use keelway_e2e::{
    TestMachine, deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet, serves},
};
use serde_json::Value;

use crate::transport::{block_all_but, unblock, uses_tls, uses_udp};

/// How long a join may take until it reports that no gateway responds. `--timeout` is five minutes.
const FOUND: Duration = Duration::from_secs(60);

pub(crate) fn is_blocked(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let (worker, node) = (worker_fleet.worker(name), format!("node/{name}"));
    let unavailable = |is: &str| {
        cluster.kubectl.wait(&format!("condition=NetworkUnavailable={is}"), &[&node]);
    };
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    unavailable("False");
    block_all_but(443, &worker);
    uses_tls(&worker);
    works(cluster, name);
    assert_eq!(status_code(&worker), 0);
    unblock(&worker);
    uses_udp(&worker);

    let _ = worker.run(&["keelway", "node", "leave"], &[]).succeeded();
    block_all_but(443, &worker);
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    uses_tls(&worker);
    nothing_gets_through(worker_fleet, cluster, name);
    unavailable("False");
    deadline::until("no taint", deadline::KUBERNETES, || !taints(cluster, name).contains("network-unavailable"));
}

/// A pod starts, is reached by a pod of another worker, and its log is read.
pub(crate) fn works(cluster: &TestCluster, name: &str) {
    let pod = format!("on-{name}");
    cluster.start(&format!("app={pod}"), &[serves(&pod, &pod, name)]);
    let address = cluster.value(&format!("pod/{pod}"), "{.status.podIP}");
    let ask = format!("exec 3<>/dev/tcp/{address}/8080; printf 'GET /hostname HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
    let answered = cluster.shell("on-clean", &ask).succeeded();
    assert!(answered.text().contains(&pod), "{}", answered.text());
    cluster.wait_for_log(&pod, "Started HTTP server on port 8080");
    let _ = cluster.kubectl.run(&["delete", "pod", &pod, "--wait=false"]).succeeded();
}

/// UDP is blocked, and the gateways get no streams: the worker is not available, and a join ends with what it found and what to open. Afterwards, the
/// worker is ready without another join.
fn nothing_gets_through(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let (worker, node) = (worker_fleet.worker(name), format!("node/{name}"));
    let machines = worker_fleet.fleet.machines();
    let public: Vec<&TestMachine> = machines.iter().filter(|machine| machine.is_public()).collect();
    let port = port(&worker.status());
    for machine in &public {
        block_streams(machine, port);
    }
    cluster.kubectl.wait("condition=NetworkUnavailable=True", &[&node]);
    let found = condition(cluster, name);
    assert!(found.contains("allow UDP from this machine to"), "{found}");
    deadline::until("the taint", deadline::KUBERNETES, || taints(cluster, name).contains("network-unavailable"));
    let events = cluster.kubectl.run(&["get", "events", "-o", "jsonpath={.items[*].reason}"]).succeeded();
    assert!(events.text().contains("NoGatewayResponds"), "{}", events.text());
    let status = worker.run(&["keelway", "node", "status"], &[]);
    assert!(status.code() == 1 && status.text().contains("No gateway responds"), "{}", status.text());

    let _ = worker.run(&["keelway", "node", "leave"], &[]).succeeded();
    let joined = worker_fleet.try_to_join(&worker, &worker_fleet.token(cluster));
    assert!(joined.code() == 1 && joined.stderr.contains("allow UDP from this machine to"), "{}", joined.stderr);
    assert!(joined.took < FOUND, "{:?}", joined.took);
    for machine in public {
        let _ = machine.run(Command::new("nft").args(["delete", "table", "ip", "streams"])).succeeded();
    }
    unblock(&worker);
    cluster.kubectl.wait("condition=Ready", &[&node]);
}

/// Returns the port of the cluster on its public machines.
fn port(status: &Value) -> u16 {
    let address = status["ingresses"][0]["address"].as_str().unwrap();
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Drops what an ingress sends to the gateway beside it.
fn block_streams(machine: &TestMachine, port: u16) {
    let script = format!(
        "nft add table ip streams
nft add chain ip streams in '{{ type filter hook input priority 0; }}'
nft add rule ip streams in ip daddr 127.0.0.1 tcp dport {port} drop"
    );
    let _ = machine.run(Command::new("sh").args(["-ec", &script])).succeeded();
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
