//! The changes that a worker makes outside of its own directory, and the state before them.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use keelway_vpn::netlink::interface::Interface;
use serde::{Deserialize, Serialize};

use crate::{
    files::{self, NodeFileError},
    firewall,
    forwarders::Forwarders,
    mounts,
    settings::{Layout, NodeOptions},
    sysctl,
};

/// The bridge of the default CNI configuration.
pub(crate) const BRIDGE: &str = "cni0";
/// Directories that kubelet, containerd and plugins fill, in addition to those that the options name.
const FILLED: [&str; 3] = ["/var/lib/cni/networks/keelway", "/var/lib/cni", "/var/log/containers"];
/// Directories that other programs use, too: for the sockets of `wg`, network namespaces, and the state of `mount`.
const SHARED: [&str; 3] = ["/run/wireguard", "/run/netns", "/run/mount"];
/// Files that programs create as locks. They are empty while no program uses them.
const EMPTY: [&str; 3] = ["/run/mount/utab", "/run/mount/utab.lock", "/run/xtables.lock"];
/// The configuration by which the kubelet makes systemd delay a shutdown.
const LOGIND: &str = "/etc/systemd/logind.conf.d/99-kubelet.conf";

/// The changes outside of the worker's own directory. `leave` and `forget` revert them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Changes {
    /// Kernel settings, with their values before.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Files that the worker created.
    pub(crate) files: Vec<PathBuf>,
    /// Directories that the worker created, outer ones first. They are removed if they are empty.
    pub(crate) directories: Vec<PathBuf>,
    /// Directories that kubelet, containerd or plugins fill. They are removed with their content.
    pub(crate) trees: Vec<PathBuf>,
    /// The names that each of these directories contained before, if it existed. These entries stay.
    pub(crate) there: BTreeMap<PathBuf, BTreeSet<Vec<u8>>>,
    /// The mounts that existed below these directories before, as bytes of their resolved paths.
    pub(crate) mounts: BTreeSet<Vec<u8>>,
    /// Files that did not exist before. They are removed if they are empty.
    pub(crate) empty: Vec<PathBuf>,
    /// Whether another program's bridge already had the name of the bridge of pods.
    pub(crate) has_bridge: bool,
    /// Tables and chains that existed before.
    pub(crate) firewall: firewall::FirewallNames,
    /// The digests of the images that containerd had before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) images: Option<BTreeSet<String>>,
    /// The names of images that the join pulled.
    pub(crate) pulled: BTreeSet<String>,
    /// What the machine forwarded packets for. Earlier releases did not record this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forwarders: Option<Forwarders>,
}

/// The state of the machine before the join, except for what is found by path.
#[derive(Debug, Default)]
pub(crate) struct MachineBaseline {
    pub(crate) firewall: firewall::FirewallNames,
    pub(crate) images: BTreeSet<String>,
    pub(crate) forwarders: Forwarders,
}

impl Changes {
    /// Observes the machine. The caller stores the result before it changes anything.
    pub(crate) fn of(options: &NodeOptions, before: MachineBaseline) -> Result<Self, NodeFileError> {
        let mut changes = Self {
            sysctls: sysctl::all(),
            directories: SHARED.iter().map(PathBuf::from).filter(|path| !path.exists()).collect(),
            empty: EMPTY.iter().map(PathBuf::from).filter(|path| !path.exists()).collect(),
            has_bridge: Interface::find(BRIDGE).is_ok(),
            firewall: before.firewall,
            images: Some(before.images),
            forwarders: Some(before.forwarders),
            ..Self::default()
        };
        let named = [&options.kubelet_root_dir, &options.pod_logs_dir].into_iter().cloned();
        for tree in named.chain(FILLED.iter().map(PathBuf::from)) {
            changes.note_tree(tree)?;
        }
        if Path::new("/run/systemd/system").exists() && !Path::new(LOGIND).exists() {
            changes.note_file(Path::new(LOGIND));
        }
        Ok(changes)
    }

    pub(crate) fn note_tree(&mut self, tree: PathBuf) -> Result<(), NodeFileError> {
        if let Some(real) = mounts::resolved(&tree)? {
            self.mounts.extend(mounts::below(&real)?.iter().map(|mount| mount.as_os_str().as_bytes().to_vec()));
            self.there.insert(tree.clone(), mounts::names(&tree)?);
        }
        self.note_missing(&tree);
        self.trees.push(tree);
        Ok(())
    }

    /// Records the missing directories above this path.
    fn note_missing(&mut self, path: &Path) {
        let missing: Vec<&Path> = path.ancestors().skip(1).take_while(|above| !above.exists()).collect();
        for directory in missing.into_iter().rev() {
            if !self.directories.iter().any(|known| known == directory) {
                self.directories.push(directory.to_owned());
            }
        }
    }

    fn note_file(&mut self, path: &Path) {
        self.note_missing(path);
        if !self.files.iter().any(|known| known == path) {
            self.files.push(path.to_owned());
        }
    }

    /// Returns the state of the trees before the join.
    pub(crate) fn trees_before(&self) -> mounts::MountBaseline {
        mounts::MountBaseline { directories: self.there.clone(), mounts: self.mounts.clone() }
    }

    pub(crate) fn read(layout: &Layout) -> Result<Self, NodeFileError> {
        Ok(files::read_json(&layout.changes())?.unwrap_or_default())
    }

    /// Records a change before it is made.
    pub(crate) fn note(layout: &Layout, change: impl FnOnce(&mut Self)) -> Result<(), NodeFileError> {
        // `join` and the daemon do this concurrently.
        let _alone = files::lock(&layout.changes().with_extension("lock"))?;
        let before = Self::read(layout)?;
        let mut after = before.clone();
        change(&mut after);
        if after == before { Ok(()) } else { files::write_json(&layout.changes(), &after) }
    }

    /// Records files and the missing directories above them, and creates these directories.
    pub(crate) fn make_room<'a>(
        layout: &Layout,
        paths: impl IntoIterator<Item = &'a Path> + Clone,
    ) -> Result<(), NodeFileError> {
        Self::note(layout, |changes| paths.clone().into_iter().for_each(|path| changes.note_file(path)))?;
        let mut directories = paths.into_iter().filter_map(Path::parent);
        directories.try_for_each(|directory| files::make_dir(directory, 0o755))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn changes_record_new_directories_and_trees() {
        let machine = tempfile::tempdir().unwrap();
        let [logs, there] = ["srv/logs/pods", "lib/kubelet"].map(|path| machine.path().join(path));
        fs::create_dir_all(&there).unwrap();
        let mut changes = Changes::default();
        changes.note_tree(logs.clone()).unwrap();
        changes.note_tree(there.clone()).unwrap();
        assert_eq!(changes.directories, ["srv", "srv/logs"].map(|path| machine.path().join(path)));
        assert_eq!(changes.trees, [logs, there.clone()]);
        assert_eq!(changes.there, [(there, BTreeSet::new())].into());
    }
}
