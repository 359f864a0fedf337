//! All ingresses and gateways got other addresses while a worker was away. The worker knows only the previous addresses, and the name of the cluster.

use std::path::Path;

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};
use serde_json::{Value, json};

/// The name of the cluster's ingresses, which only this worker resolves.
const NAME: &str = "api.moved.test";
/// What the worker stores about the cluster.
const INFORMATION: &str = "/var/lib/keelway-node/cluster.json";
/// An address at which nothing responds.
const PREVIOUS: &str = "198.18.255.250";

pub(crate) fn is_found_by_name(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    let before = worker.status();
    let read = || worker.run(&["cat", INFORMATION], &[]).succeeded().json();
    let mut known = read();
    let endpoints = known["endpoints"].clone();
    let addresses: Vec<String> = endpoints.as_array().unwrap().iter().map(host).collect();

    let _ = worker.shell(&format!("kill -KILL {}", before["pid"])).succeeded();
    for endpoint in known["endpoints"].as_array_mut().unwrap() {
        let port = endpoint["address"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
        endpoint["address"] = json!(format!("{PREVIOUS}:{port}"));
    }
    known["names"] = json!([NAME]);
    let _ = worker.run(&["tee", INFORMATION], known.to_string().as_bytes()).succeeded();
    let lines: Vec<String> = addresses.iter().map(|address| format!("{address} {NAME}\n")).collect();
    let hosts = format!(
        "cp /etc/hosts /run/hosts; printf '%s' '{}' >> /run/hosts; mount --bind /run/hosts /etc/hosts",
        lines.concat()
    );
    let _ = worker.shell(&hosts).succeeded();
    worker.start_daemon(Path::new("keelway"));
    let _ = worker.another_daemon(&before);

    deadline::until("the worker knows the current ingresses", deadline::KUBERNETES, || {
        read()["endpoints"] == endpoints
    });
    deadline::until("all ingresses and gateways respond", deadline::KUBERNETES, || {
        let now = worker.status();
        ["ingresses", "tunnels"].iter().all(|list| respond(&now[list], &addresses))
    });
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{name}")]);
    let _ = worker.shell("umount /etc/hosts").succeeded();
}

fn host(endpoint: &Value) -> String {
    endpoint["address"].as_str().unwrap().rsplit_once(':').unwrap().0.to_owned()
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
