//! Sample values for tests of several modules.

use keelway_api::worker::ClusterInformation;
use serde_json::json;

use crate::{
    open_ports::OpenPorts,
    settings::{DaemonMode, NodeOptions},
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
