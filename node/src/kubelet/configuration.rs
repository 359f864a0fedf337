//! The kubelet's configuration and arguments. Pure.

use std::path::Path;

use keelway_api::worker::ClusterInformation;
use keelway_cri::CriCgroupDriver;
use serde_json::{Value, json};

use crate::{
    peer::PeerAssignment,
    settings::{Layout, NodeOptions},
};

/// The facts of the machine that the kubelet's configuration depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KubeletHost {
    /// The cgroup driver that the runtime reports.
    pub(crate) cgroup_driver: CriCgroupDriver,
    /// Whether cgroups are of version 1.
    pub(crate) has_cgroup_v1: bool,
    /// Whether this process may set a negative OOM score (CAP_SYS_RESOURCE).
    pub(crate) may_lower_oom_score: bool,
    /// Whether the machine has systemd, which announces a shutdown.
    pub(crate) has_systemd: bool,
    /// The file from which pods get their DNS servers.
    pub(crate) resolv_conf: &'static Path,
}

/// Returns the kubelet's configuration file.
pub(crate) fn configuration(
    layout: &Layout,
    options: &NodeOptions,
    cluster: &ClusterInformation,
    assignment: &PeerAssignment,
    machine: KubeletHost,
) -> Value {
    let mut file = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // The kubelet listens inside the VPN only: the firewall drops packets to this address from the worker's other networks.
        "address": assignment.addresses.first(),
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": layout.authorities() },
        },
        "authorization": { "mode": "Webhook" },
        "rotateCertificates": true,
        "serverTLSBootstrap": true,
        "tlsMinVersion": "VersionTLS12",
        "clusterDomain": cluster.dns_domain,
        "clusterDNS": [cluster.dns_address],
        "resolvConf": machine.resolv_conf,
        "containerRuntimeEndpoint": format!("unix://{}", options.containerd_socket.display()),
        "cgroupDriver": match machine.cgroup_driver {
            CriCgroupDriver::Systemd => "systemd",
            CriCgroupDriver::Cgroupfs => "cgroupfs",
        },
        "podLogsDir": options.pod_logs_dir,
        // The kubelet creates this directory, and by default it would be outside of the root directory.
        "volumePluginDir": options.kubelet_root_dir.join("volume-plugins"),
        // No component needs the kubelet's own chains any more, and the kubelet would not remove them.
        "makeIPTablesUtilChains": false,
        // Pods get no swap, even if the machine has some.
        "failSwapOn": false,
        "logging": { "verbosity": 1 },
    });
    if let Some(root) = &options.cgroup_root {
        file["cgroupRoot"] = json!(root);
    }
    if machine.has_cgroup_v1 {
        file["failCgroupV1"] = json!(false);
    }
    if !machine.may_lower_oom_score {
        file["oomScoreAdj"] = json!(0);
    }
    if machine.has_systemd {
        file["shutdownGracePeriod"] = json!("30s");
        file["shutdownGracePeriodCriticalPods"] = json!("10s");
    }
    file
}

/// Returns the kubelet's arguments: options that its file cannot contain.
pub(crate) fn arguments(layout: &Layout, options: &NodeOptions, assignment: &PeerAssignment) -> Vec<String> {
    let path = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    let addresses: Vec<String> = assignment.addresses.iter().map(ToString::to_string).collect();
    let mut arguments = vec![
        path("config", &layout.kubelet_config()),
        path("kubeconfig", &layout.kubeconfig()),
        path("cert-dir", &layout.pki()),
        path("root-dir", &options.kubelet_root_dir),
        format!("--node-ip={}", addresses.join(",")),
        format!("--hostname-override={}", options.name),
    ];
    if !options.labels.is_empty() {
        arguments.push(format!("--node-labels={}", options.labels.join(",")));
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{cluster, options};

    fn machine() -> KubeletHost {
        KubeletHost {
            cgroup_driver: CriCgroupDriver::Systemd,
            has_cgroup_v1: false,
            may_lower_oom_score: true,
            has_systemd: true,
            resolv_conf: Path::new("/run/systemd/resolve/resolv.conf"),
        }
    }

    #[test]
    fn the_kubelet_authenticates_and_authorizes_clients() {
        let assignment = PeerAssignment { addresses: vec!["100.80.0.17".parse().unwrap()], pod_cidrs: vec![] };
        let layout = Layout::new("/var/lib/keelway-node");
        let file = configuration(&layout, &options(), &cluster(), &assignment, machine());
        assert_eq!(file["authentication"]["anonymous"]["enabled"], false);
        assert_eq!((file["authorization"]["mode"].as_str(), &file["readOnlyPort"]), (Some("Webhook"), &json!(0)));
        assert_eq!(file["address"], "100.80.0.17");
        assert_eq!(file["clusterDNS"], json!(["10.96.0.10"]));
        assert_eq!(file["resolvConf"], "/run/systemd/resolve/resolv.conf");
        assert!(file.get("failCgroupV1").is_none() && file.get("oomScoreAdj").is_none());
        let arguments = arguments(&layout, &options(), &assignment).join(" ");
        assert!(arguments.contains("--node-ip=100.80.0.17 --hostname-override=w1"), "{arguments}");
    }

    #[test]
    fn the_kubelet_is_configured_for_old_machines() {
        let machine = KubeletHost { has_cgroup_v1: true, may_lower_oom_score: false, has_systemd: false, ..machine() };
        let wishes = NodeOptions { cgroup_root: Some("/w1".to_owned()), ..options() };
        let file = configuration(&Layout::new("/s"), &wishes, &cluster(), &PeerAssignment::default(), machine);
        assert_eq!((&file["failCgroupV1"], &file["oomScoreAdj"]), (&json!(false), &json!(0)));
        assert_eq!(file["cgroupRoot"], "/w1");
        assert!(file.get("shutdownGracePeriod").is_none());
    }
}
