//! Sample values and names for tests of several modules.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use keelway_api::worker::ClusterInformation;
use serde_json::json;

use crate::{
    ingress_names::IngressResolver,
    open_ports::OpenPorts,
    settings::{DaemonMode, NodeOptions},
    status::WorkerStatus,
};

/// The options of a worker, with as few values as possible.
pub(crate) fn options() -> NodeOptions {
    NodeOptions {
        name: "w1".to_owned(),
        containerd_socket: "/run/containerd/containerd.sock".into(),
        kubelet_root_dir: "/var/lib/kubelet".into(),
        pod_logs_dir: "/var/log/pods".into(),
        cgroup_root: None,
        allow_cgroup_v1: false,
        cni_bin_dir: None,
        cni_conf_dir: None,
        image: None,
        labels: vec![],
        open_ports: OpenPorts::default(),
        proxy: None,
        service: DaemonMode::Detached,
    }
}

/// A cluster without endpoints.
pub(crate) fn cluster() -> ClusterInformation {
    serde_json::from_value(json!({
        "version": "1.37.0",
        "endpoints": [],
        "api": { "addresses": ["100.80.0.1"], "port": 6443 },
        "vpnCIDRs": ["100.80.0.0/16"],
        "vpnMTU": 1280,
        "podCIDRs": ["10.244.0.0/16"],
        "serviceCIDRs": ["10.96.0.0/16"],
        "dnsDomain": "cluster.local",
        "dnsAddress": "10.96.0.10",
    }))
    .unwrap()
}

/// The status of a worker with two tunnels, a direct path, an ingress that does not respond, and a kubelet that does not run.
pub(crate) fn worker_status() -> WorkerStatus {
    serde_json::from_value(json!({
        "node": "w1", "version": "1.37.0", "pid": 1, "residentKib": 1, "addresses": [], "podCIDRs": [],
        "tunnels": [
            { "interface": "keelway0", "endpoint": "203.0.113.1:20000", "active": true, "answers": true, "dataPath": "kernel",
              "lastHandshake": 1_900_000_000_u64, "latencyMicroseconds": 1500, "receivedBytes": 7, "sentBytes": 8 },
            { "interface": "keelway1", "endpoint": "203.0.113.2:20000", "active": false, "dataPath": "kernel",
              "receivedBytes": 0, "sentBytes": 0 },
        ],
        "directPaths": [
            { "address": "100.80.0.8", "endpoint": "192.168.1.8:50000", "state": "direct", "receivedBytes": 1, "sentBytes": 2 },
        ],
        "ingresses": [{ "address": "203.0.113.1:6443", "answers": false, "connections": 3 }],
        "kubelet": { "restarts": 2 },
        "certificates": [{ "name": "client", "notBefore": "2030-01-01T00:00:00Z", "notAfter": "2030-01-31T00:00:00Z" }],
    }))
    .unwrap()
}

/// Names with their addresses, for tests that must not depend on the DNS servers of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalResolver {
    names: Arc<Mutex<BTreeMap<String, Vec<IpAddr>>>>,
    queries: Arc<AtomicUsize>,
}

impl LocalResolver {
    pub(crate) fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.names.lock().unwrap().insert(name.to_owned(), addresses);
    }

    pub(crate) fn forget_all(&self) {
        self.names.lock().unwrap().clear();
    }

    /// Returns how many names were resolved so far, or could not be.
    pub(crate) fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }
}

impl IngressResolver for LocalResolver {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        let found = self.names.lock().unwrap().get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }
}
