//! What a worker was told when it joined, and where its files are.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{self, NodeFileError};

/// Where a worker keeps its state unless it is told otherwise.
pub const STATE: &str = "/var/lib/keelway-node";

/// How the daemon is kept running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonMode {
    /// As a unit of systemd.
    Systemd,
    /// Started once, in a session of its own; after a reboot somebody else starts it.
    Detached,
    /// By whoever has asked for it: `join` starts nothing.
    None,
}

/// What a worker was told when it joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOptions {
    /// The Node's name.
    pub name: String,
    /// containerd's socket.
    pub containerd_socket: PathBuf,
    /// The kubelet's own directory.
    pub kubelet_root_dir: PathBuf,
    /// Where logs of pods are.
    pub pod_logs_dir: PathBuf,
    /// The cgroup below which pods are; made and removed here. None: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_root: Option<String>,
    /// Whether cgroups of version 1 are good enough.
    #[serde(default)]
    pub allow_cgroup_v1: bool,
    /// Where containerd looks for CNI plugins; none: where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_bin_dir: Option<PathBuf>,
    /// Where containerd looks for its CNI configuration; none: where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_conf_dir: Option<PathBuf>,
    /// The image with kubelet and CNI plugins; none: the one of the cluster's release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Labels that the Node begins with, `KEY=VALUE`.
    #[serde(default)]
    pub labels: Vec<String>,
    /// How the daemon is kept running.
    pub service: DaemonMode,
}

/// An option of an earlier join that cannot change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionChange {
    /// As it is given.
    pub option: &'static str,
    /// What it was.
    pub before: String,
    /// What it is to be.
    pub now: String,
}

impl NodeOptions {
    /// What cannot change while the machine is a worker: pods, files and the Node are where, and as, they were told to be.
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

/// The files of a worker, all below one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Below this directory.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// What the worker was told: the first file of a join, and the last one to go.
    pub(crate) fn options(&self) -> PathBuf {
        self.at("node.json")
    }

    /// The authorities that are trusted.
    pub(crate) fn authorities(&self) -> PathBuf {
        self.at("ca.crt")
    }

    /// What was last read of the cluster.
    pub(crate) fn information(&self) -> PathBuf {
        self.at("cluster.json")
    }

    pub(crate) fn wireguard_key(&self) -> PathBuf {
        self.at("wireguard.key")
    }

    /// What the cluster gave to the worker: its addresses.
    pub(crate) fn peer(&self) -> PathBuf {
        self.at("peer.json")
    }

    /// The kubelet's certificates.
    pub(crate) fn pki(&self) -> PathBuf {
        self.at("pki")
    }

    /// The key of the first certificate, until there is one.
    pub(crate) fn joining_key(&self) -> PathBuf {
        self.pki().join("joining.key")
    }

    /// The certificate of now with its key: a link that the kubelet moves when it renews.
    pub(crate) fn identity(&self) -> PathBuf {
        self.pki().join(crate::certificate::CLIENT)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.at("kubeconfig")
    }

    pub(crate) fn kubelet_config(&self) -> PathBuf {
        self.at("kubelet.json")
    }

    /// Programs of the node image, by the image that they are of.
    pub(crate) fn programs(&self) -> PathBuf {
        self.at("programs")
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.programs().join("kubelet")
    }

    pub(crate) fn plugins(&self) -> PathBuf {
        self.programs().join("cni")
    }

    /// Which image the programs are of: written last.
    pub(crate) fn programs_of(&self) -> PathBuf {
        self.programs().join("image")
    }

    /// Where the image is mounted while it is read.
    pub(crate) fn mount(&self) -> PathBuf {
        self.at("image")
    }

    /// What was changed outside of this directory, and what was there before.
    pub(crate) fn changes(&self) -> PathBuf {
        self.at("changes.json")
    }

    /// There while the worker leaves: then the daemon starts no kubelet.
    pub(crate) fn leaving(&self) -> PathBuf {
        self.at("leaving")
    }

    /// The kubelet's process.
    pub(crate) fn kubelet_process(&self) -> PathBuf {
        self.at("kubelet.process")
    }

    /// The daemon's process.
    pub(crate) fn daemon_process(&self) -> PathBuf {
        self.at("daemon.process")
    }

    /// Where the daemon answers.
    pub(crate) fn socket(&self) -> PathBuf {
        self.at("node.sock")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.at("log")
    }

    /// What this worker was told; none where the machine is no worker.
    pub(crate) fn read_options(&self) -> Result<Option<NodeOptions>, NodeFileError> {
        files::read_json(&self.options())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::options;

    #[test]
    fn what_cannot_change_is_told_of() {
        let before = options();
        let image = Some("registry.example.com/node:v1.37.0".to_owned());
        let can = NodeOptions { image, service: DaemonMode::Systemd, allow_cgroup_v1: true, ..options() };
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
