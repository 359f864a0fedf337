//! The options of a worker, and the location of its files.

use std::{
    collections::BTreeSet,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use keelway_http_proxy::ProxySettings;
use serde::{Deserialize, Serialize};

use crate::{
    files::{self, NodeFileError},
    open_ports::OpenPorts,
};

/// The default directory of a worker's state.
pub const STATE: &str = "/var/lib/keelway-node";

/// The default directory in which `join` installs its program.
pub const INSTALL: &str = "/usr/local/bin";

/// How the daemon is kept running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonMode {
    /// As a unit of systemd.
    Systemd,
    /// Started once, in a session of its own. After a reboot, the user must start it.
    Detached,
    /// By the caller: `join` starts nothing.
    None,
}

/// The options with which a worker joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOptions {
    /// The Node's name.
    pub name: String,
    /// The path of containerd's socket.
    pub containerd_socket: PathBuf,
    /// The kubelet's root directory.
    pub kubelet_root_dir: PathBuf,
    /// The directory of pod logs.
    pub pod_logs_dir: PathBuf,
    /// The cgroup that contains the pods, which Keelway creates and removes. `None` means the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_root: Option<String>,
    /// Whether cgroups of version 1 are accepted.
    #[serde(default)]
    pub allow_cgroup_v1: bool,
    /// The directory in which containerd looks for CNI plugins. `None` means the one that containerd reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_bin_dir: Option<PathBuf>,
    /// The directory in which containerd looks for its CNI configuration. `None` means the one that containerd reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_conf_dir: Option<PathBuf>,
    /// The image with kubelet and CNI plugins. `None` means the image of the cluster's release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The initial labels of the Node, `KEY=VALUE`.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The ports of this machine that tunnels and pods reach.
    #[serde(default, skip_serializing_if = "OpenPorts::is_default")]
    pub open_ports: OpenPorts,
    /// The HTTP proxy of connections to the cluster. Without one, they are direct.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxySettings>,
    /// How the daemon is kept running.
    pub service: DaemonMode,
}

/// A changed option that cannot change after a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionChange {
    /// The option on the command line.
    pub option: &'static str,
    /// The value of the earlier join.
    pub before: String,
    /// The value of this join.
    pub now: String,
}

impl NodeOptions {
    /// Returns the changed options that cannot change while the machine is a worker, because pods, files and the Node depend on them.
    #[must_use]
    pub(crate) fn differences(&self, now: &Self) -> Vec<OptionChange> {
        let path = |path: &Path| path.display().to_string();
        let maybe = |path: &Option<PathBuf>| {
            path.as_deref().map_or_else(|| "<default>".to_owned(), |path| path.display().to_string())
        };
        let each = |of: &Self| {
            [
                ("--containerd-socket", path(&of.containerd_socket)),
                ("--kubelet-root-dir", path(&of.kubelet_root_dir)),
                ("--pod-logs-dir", path(&of.pod_logs_dir)),
                ("--cgroup-root", of.cgroup_root.clone().unwrap_or_else(|| "<default>".to_owned())),
                ("--cni-bin-dir", maybe(&of.cni_bin_dir)),
                ("--cni-conf-dir", maybe(&of.cni_conf_dir)),
                ("--node-label", if of.labels.is_empty() { "<none>".to_owned() } else { of.labels.join(",") }),
            ]
        };
        let pairs = each(self).into_iter().zip(each(now));
        let differing = pairs.filter(|((_, before), (_, now))| before != now);
        differing.map(|((option, before), (_, now))| OptionChange { option, before, now }).collect()
    }
}

/// The location of a worker's files, all below one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Creates a layout below this directory.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The options of the worker. A join writes this file first, and its removal is the last step.
    pub(crate) fn options(&self) -> PathBuf {
        self.at("node.json")
    }

    /// The authorities to trust.
    pub(crate) fn authorities(&self) -> PathBuf {
        self.at("ca.crt")
    }

    /// The cluster's information as last read.
    pub(crate) fn information(&self) -> PathBuf {
        self.at("cluster.json")
    }

    pub(crate) fn wireguard_key(&self) -> PathBuf {
        self.at("wireguard.key")
    }

    /// The addresses and ranges that the cluster assigned to the worker.
    pub(crate) fn peer(&self) -> PathBuf {
        self.at("peer.json")
    }

    /// The directory of the kubelet's certificates.
    pub(crate) fn pki(&self) -> PathBuf {
        self.at("pki")
    }

    /// The key of the first certificate, until that certificate exists.
    pub(crate) fn joining_key(&self) -> PathBuf {
        self.pki().join("joining.key")
    }

    /// The current certificate with its key: a link that the kubelet moves when it renews.
    pub(crate) fn identity(&self) -> PathBuf {
        self.pki().join(crate::certificate::CLIENT)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.at("kubeconfig")
    }

    pub(crate) fn kubelet_config(&self) -> PathBuf {
        self.at("kubelet.json")
    }

    /// The directory of the node image's programs.
    pub(crate) fn programs(&self) -> PathBuf {
        self.at("programs")
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.programs().join("kubelet")
    }

    pub(crate) fn plugins(&self) -> PathBuf {
        self.programs().join("cni")
    }

    /// Names the image of the programs. It is written last.
    pub(crate) fn programs_of(&self) -> PathBuf {
        self.programs().join("image")
    }

    /// The files of programs that an upgrade extracts from their image, before they replace the others.
    pub(crate) fn staged(&self) -> Self {
        Self::new(self.at("next"))
    }

    /// Exists while the Node is cordoned by an upgrade.
    pub(crate) fn cordoned(&self) -> PathBuf {
        self.at("cordoned")
    }

    /// The mount point of the image while it is read.
    pub(crate) fn mount(&self) -> PathBuf {
        self.at("image")
    }

    /// The changes outside of this directory, with the state before them.
    pub(crate) fn changes(&self) -> PathBuf {
        self.at("changes.json")
    }

    /// Exists while the worker leaves. The daemon then starts no kubelet.
    pub(crate) fn leaving(&self) -> PathBuf {
        self.at("leaving")
    }

    pub(crate) fn kubelet_process(&self) -> PathBuf {
        self.at("kubelet.process")
    }

    /// The authorities with which the kubelet was started.
    pub(crate) fn kubelet_trust(&self) -> PathBuf {
        self.at("kubelet.trust")
    }

    pub(crate) fn daemon_process(&self) -> PathBuf {
        self.at("daemon.process")
    }

    /// The user's credentials for registries.
    pub(crate) fn registry_config(&self) -> PathBuf {
        self.at("registry.json")
    }

    /// The cluster's credentials for registries.
    pub(crate) fn cluster_registry_config(&self) -> PathBuf {
        self.at("registry-cluster.json")
    }

    /// The socket of the metrics.
    pub(crate) fn metrics_socket(&self) -> PathBuf {
        self.at("metrics.sock")
    }

    /// What the worker remembers of its Node.
    pub(crate) fn node_record(&self) -> PathBuf {
        self.at("node-record.json")
    }

    /// The daemon's status socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.at("node.sock")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.at("log")
    }

    /// Returns the names in this directory after a join that was interrupted while it stored its options.
    pub(crate) fn first_names(&self) -> BTreeSet<Vec<u8>> {
        let files = [self.options(), self.changes(), self.authorities(), self.information()];
        let each = files.iter().flat_map(|path| [path.clone(), files::temporary_path(path)]);
        each.filter_map(|path| Some(path.file_name()?.as_bytes().to_vec())).collect()
    }

    /// Returns the options of this worker, or `None` if the machine is not a worker.
    pub(crate) fn read_options(&self) -> Result<Option<NodeOptions>, NodeFileError> {
        files::read_json(&self.options())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::options;

    #[test]
    fn options_that_cannot_change_are_reported() {
        let before = options();
        let image = Some("registry.example.com/node:v1.37.0".to_owned());
        let can = NodeOptions {
            image,
            service: DaemonMode::Systemd,
            allow_cgroup_v1: true,
            open_ports: OpenPorts::All,
            proxy: Some(ProxySettings::default()),
            ..options()
        };
        assert_eq!(before.differences(&can), []);
        let cannot = NodeOptions { kubelet_root_dir: "/srv/kubelet".into(), labels: vec!["a=b".to_owned()], ..can };
        let found: Vec<String> = before
            .differences(&cannot)
            .into_iter()
            .map(|each| format!("{} {} {}", each.option, each.before, each.now))
            .collect();
        assert_eq!(found, ["--kubelet-root-dir /var/lib/kubelet /srv/kubelet", "--node-label <none> a=b"]);
    }
}
