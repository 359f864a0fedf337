//! The parent cgroups of Keelway's pods, with the driver cgroupfs. Runtimes create them and never remove them.

use std::{io, os::fd::BorrowedFd};

use keelway_api::name::ClusterId;
use rustix::io::Errno;

use super::folder::Folder;

const MOUNT: &str = "/sys/fs/cgroup";

/// Removes a cluster's cgroup and its parent in each hierarchy, if they are empty. Machines that share a kernel share them, so the last machine to
/// leave removes them.
pub(super) fn remove_parents(root: BorrowedFd<'_>, cluster: &ClusterId) -> io::Result<()> {
    for hierarchy in hierarchies(root)? {
        let keelway = match hierarchy.child("keelway") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        ignore_busy(keelway.remove_empty(cluster.as_str()))?;
        ignore_busy(hierarchy.remove_empty("keelway"))?;
    }
    Ok(())
}

/// Returns the root of each hierarchy. Version 2 is mounted as one; version 1 as one for each set of controllers.
fn hierarchies(root: BorrowedFd<'_>) -> io::Result<Vec<Folder>> {
    let mount = match Folder::open_in_root(root, MOUNT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found?,
    };
    // If a hierarchy has several names, all but one are links, which do not open as directories.
    let mut found: Vec<Folder> = mount.names()?.iter().filter_map(|name| mount.child(name).ok()).collect();
    found.push(mount);
    Ok(found)
}

fn ignore_busy(removed: Result<(), Errno>) -> io::Result<()> {
    match removed {
        Err(Errno::NOTEMPTY | Errno::BUSY | Errno::NOENT | Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}
