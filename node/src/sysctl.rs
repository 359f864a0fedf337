//! Settings of the kernel that pods need, and what they were before.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    files::{self, FileError},
    settings::{Layout, NodeOptions},
};

/// Forwarding between pods and tunnels; and Services between pods of one bridge.
const WANTED: [(&str, &str); 4] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/bridge/bridge-nf-call-iptables", "1"),
    ("net/bridge/bridge-nf-call-ip6tables", "1"),
];

/// Settings that the kubelet (`setupKernelTunables`) and kube-proxy change.
const CHANGED_BY_OTHERS: [&str; 11] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
];
/// Directories that kubelet, containerd and plugins make.
const MADE_BY_OTHERS: [&str; 4] =
    ["/var/lib/cni", "/var/log/containers", "/var/lib/kubelet", "/usr/libexec/kubernetes"];

/// Where tunnels are shown to `wg`; removed only where nobody else has one there.
const SOCKETS: &str = "/run/wireguard";

/// What was changed outside of the worker's own directory, to be put back when it leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Changes {
    /// Settings, and what they were.
    #[serde(default)]
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Files that were made.
    #[serde(default)]
    pub(crate) files: Vec<PathBuf>,
    /// Directories that were made, the outer ones first.
    #[serde(default)]
    pub(crate) directories: Vec<PathBuf>,
    /// Directories that were not there and that kubelet, containerd or plugins make: they go with all in them.
    #[serde(default)]
    pub(crate) trees: Vec<PathBuf>,
    /// The image that was pulled for the worker's programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
}

impl Changes {
    /// Writes down how the machine is, before any of it changes.
    pub(crate) fn remember(layout: &Layout, options: &NodeOptions) -> Result<(), FileError> {
        let sysctls = CHANGED_BY_OTHERS.iter().filter_map(|name| {
            let found = fs::read_to_string(file(name)).ok()?;
            Some(((*name).to_owned(), found.trim().to_owned()))
        });
        let made = MADE_BY_OTHERS.iter().map(Path::new).chain([options.pod_logs_dir.as_path()]);
        let missing = made.filter_map(|path| path.ancestors().take_while(|above| !above.exists()).last());
        let sockets = PathBuf::from(SOCKETS);
        let changes = Self {
            sysctls: sysctls.collect(),
            directories: if sockets.exists() { Vec::new() } else { vec![sockets] },
            trees: missing.map(Path::to_owned).collect(),
            ..Self::default()
        };
        files::write_json(&layout.changes(), &changes)
    }

    pub(crate) fn read(layout: &Layout) -> Result<Self, FileError> {
        Ok(files::read_json(&layout.changes())?.unwrap_or_default())
    }

    /// Writes down what is about to be changed.
    pub(crate) fn note(layout: &Layout, change: impl FnOnce(&mut Self)) -> Result<(), FileError> {
        let before = Self::read(layout)?;
        let mut after = before.clone();
        change(&mut after);
        if after == before { Ok(()) } else { files::write_json(&layout.changes(), &after) }
    }

    /// Writes down a file and the directories above it that are not there yet, and makes these.
    pub(crate) fn make_room(layout: &Layout, path: &Path) -> Result<(), FileError> {
        let missing: Vec<PathBuf> =
            path.ancestors().skip(1).take_while(|above| !above.exists()).map(PathBuf::from).collect();
        Self::note(layout, |changes| {
            for directory in missing.iter().rev() {
                if !changes.directories.contains(directory) {
                    changes.directories.push(directory.clone());
                }
            }
            if !changes.files.contains(&path.to_owned()) {
                changes.files.push(path.to_owned());
            }
        })?;
        path.parent().map_or(Ok(()), |directory| files::make_dir(directory, 0o755))
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

/// Sets all, where the kernel has them.
pub(crate) fn set(layout: &Layout) -> Result<(), FileError> {
    for (name, wanted) in WANTED {
        let Ok(found) = fs::read_to_string(file(name)) else { continue };
        let found = found.trim();
        if found == wanted {
            continue;
        }
        Changes::note(layout, |changes| {
            changes.sysctls.entry(name.to_owned()).or_insert_with(|| found.to_owned());
        })?;
        fs::write(file(name), wanted).map_err(FileError::new("set", file(name)))?;
    }
    Ok(())
}

/// Puts back what was there before.
pub(crate) fn put_back(changes: &Changes) -> Result<(), FileError> {
    for (name, before) in &changes.sysctls {
        if fs::read_to_string(file(name)).is_ok_and(|now| now.trim() != before) {
            fs::write(file(name), before).map_err(FileError::new("set", file(name)))?;
        }
    }
    Ok(())
}
