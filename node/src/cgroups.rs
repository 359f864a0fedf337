//! The cgroup that contains the cgroups of a worker's pods, if it is not the root.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    checks::Cgroups,
    facts,
    files::{self, NodeFileError},
};

const ROOT: &str = "/sys/fs/cgroup";
/// The cgroup in which the kubelet creates the cgroups of pods, for each of the two drivers.
const PODS: [&str; 2] = ["kubepods", "kubepods.slice"];

/// Returns the cgroup hierarchies: one in version 2, one for each controller in version 1.
fn hierarchies() -> Vec<PathBuf> {
    match facts::cgroups() {
        Cgroups::Unified => vec![ROOT.into()],
        Cgroups::Legacy => {
            let entries = fs::read_dir(ROOT).into_iter().flatten().flatten();
            // If a controller could not be mounted, its directory is empty.
            entries.map(|entry| entry.path()).filter(|path| !path.is_symlink() && is_group(path)).collect()
        }
        Cgroups::Missing => Vec::new(),
    }
}

fn is_group(path: &Path) -> bool {
    path.join("cgroup.procs").exists()
}

/// Creates the group in every hierarchy. The kubelet requires that it exists.
pub(crate) fn ensure(name: &str) -> Result<(), NodeFileError> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name.trim_start_matches('/'));
        files::make_dir(&group, 0o755)?;
        inherit(&hierarchy, &group);
    }
    Ok(())
}

/// Copies CPUs and memory nodes from the root. In version 1, a group without them accepts no process.
fn inherit(hierarchy: &Path, group: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let is_empty = fs::read_to_string(group.join(file)).is_ok_and(|found| found.trim().is_empty());
        if is_empty && let Ok(above) = fs::read_to_string(hierarchy.join(file)) {
            // In version 2 the file may be absent, and the group needs no value.
            let _ = fs::write(group.join(file), above.trim());
        }
    }
}

/// Removes the groups of pods and, if the worker created it, the group itself. A group with processes stays.
pub(crate) fn remove(name: Option<&str>) {
    for hierarchy in hierarchies() {
        let base = hierarchy.join(name.unwrap_or_default().trim_start_matches('/'));
        for pods in PODS {
            remove_tree(&base.join(pods));
        }
        if name.is_some_and(|name| !name.trim_matches('/').is_empty()) {
            remove_tree(&base);
        }
    }
}

fn remove_tree(group: &Path) {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .for_each(|entry| remove_tree(&entry.path()));
    if let Err(error) = files::gone(fs::remove_dir(group)) {
        tracing::warn!(%error, group = %group.display(), "cannot remove the cgroup");
    }
}
