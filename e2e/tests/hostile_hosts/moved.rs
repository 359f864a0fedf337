//! All ingresses and gateways have other addresses than those that a worker knows: first those of its join token, then those that it stored before it was
//! away until its certificate expired. It knows the name of the cluster, too.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use keelway_api::jiff::Timestamp;
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet},
};
use keelway_pki::JoinToken;
use serde_json::{Value, json};

use crate::certificate;

/// The name of the cluster's ingresses, which only this worker resolves.
pub(crate) const NAME: &str = "api.moved.test";
/// What the worker stores about the cluster.
const INFORMATION: &str = "/var/lib/keelway-node/cluster.json";
/// An address at which nothing responds.
const PREVIOUS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 255, 250));
/// The remaining life of the certificate when the worker goes away.
const LIFE: Duration = Duration::from_secs(1);

pub(crate) fn is_found_by_name(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let token = String::from_utf8(worker_fleet.token(cluster)).unwrap();
    let token: JoinToken = token.trim().parse().unwrap();
    assert_eq!(token.names, [NAME]);
    let addresses: Vec<String> = token.endpoints.iter().map(|endpoint| endpoint.ip().to_string()).collect();
    resolve_name(&worker, &addresses);
    let previous = token.endpoints.iter().map(|endpoint| SocketAddr::new(PREVIOUS, endpoint.port()));
    let old_token = JoinToken { endpoints: previous.collect(), ..token.clone() };
    worker_fleet.join_one(cluster, name, old_token.encode().as_bytes());

    let endpoints = information(&worker)["endpoints"].clone();
    let expired = goes_away(worker_fleet, cluster, name);
    deadline::until("the certificate is renewed", deadline::KUBERNETES, || client_expiry(&worker.status()) > expired);
    deadline::until("the worker knows the current ingresses", deadline::KUBERNETES, || {
        information(&worker)["endpoints"] == endpoints
    });
    deadline::until("all ingresses and gateways respond", deadline::KUBERNETES, || {
        let now = worker.status();
        ["ingresses", "tunnels"].iter().all(|list| respond(&now[list], &addresses))
    });
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{name}")]);
    let _ = worker.shell("umount /etc/hosts").succeeded();
}

/// Makes the worker resolve the name to these addresses.
fn resolve_name(worker: &TestWorker<'_>, addresses: &[String]) {
    let lines: Vec<String> = addresses.iter().map(|address| format!("{address} {NAME}\n")).collect();
    let hosts = format!(
        "cp /etc/hosts /run/hosts; printf '%s' '{}' >> /run/hosts; mount --bind /run/hosts /etc/hosts",
        lines.concat()
    );
    let _ = worker.shell(&hosts).succeeded();
}

/// Stops the worker until its certificate has expired, and all addresses that it stored are wrong. Returns when the certificate expired.
fn goes_away(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) -> Timestamp {
    let worker = worker_fleet.worker(name);
    let before = worker.status();
    let _ = worker.shell(&format!("kill -KILL {} {}", before["pid"], before["kubelet"]["pid"])).succeeded();
    let expired = certificate::replace(worker_fleet, cluster, name, LIFE);
    let mut known = information(&worker);
    assert_eq!(known["names"], json!([NAME]));
    for endpoint in known["endpoints"].as_array_mut().unwrap() {
        let current: SocketAddr = endpoint["address"].as_str().unwrap().parse().unwrap();
        endpoint["address"] = json!(SocketAddr::new(PREVIOUS, current.port()));
    }
    let _ = worker.run(&["tee", INFORMATION], known.to_string().as_bytes()).succeeded();
    deadline::until("the certificate has expired", deadline::KUBERNETES, || Timestamp::now() > expired);
    worker.start_daemon(Path::new("keelway"));
    assert_eq!(client_expiry(&worker.another_daemon(&before)), expired, "it starts without a valid certificate");
    expired
}

fn information(worker: &TestWorker<'_>) -> Value {
    worker.run(&["cat", INFORMATION], &[]).succeeded().json()
}

/// Returns when the client certificate of the worker expires.
fn client_expiry(status: &Value) -> Timestamp {
    let certificates = status["certificates"].as_array().unwrap();
    let client = certificates.iter().find(|certificate| certificate["name"] == "client").unwrap();
    client["notAfter"].as_str().unwrap().parse().unwrap()
}

/// Whether each of these addresses is in a list of the status, and responds.
fn respond(list: &Value, addresses: &[String]) -> bool {
    let list = list.as_array().unwrap();
    let responds = |entry: &Value| {
        let at = entry["address"].as_str().or(entry["endpoint"].as_str()).unwrap_or_default();
        addresses.iter().any(|address| at.starts_with(&format!("{address}:"))) && entry["answers"] == true
    };
    list.len() == addresses.len() && list.iter().all(responds)
}
