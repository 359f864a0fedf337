//! Control groups of both versions. Each machine has a group in every hierarchy, which is the root inside the machine.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::CWD,
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount},
};

use crate::{
    LocalHypervisorError,
    files::{make_dir, none_if_missing},
    mounts,
};

/// The controllers that a machine may delegate to its containers, if the host's hierarchy is of version 2.
const DELEGATED: [&str; 5] = ["cpu", "cpuset", "io", "memory", "pids"];

/// Returns the mount points of the hierarchies. A host with both versions has its controllers in those of version 1.
fn hierarchies() -> Result<Vec<PathBuf>, LocalHypervisorError> {
    let mut points: Vec<PathBuf> = mounts::all()?
        .into_iter()
        .filter(|mount| matches!(mount.kind.as_str(), "cgroup" | "cgroup2"))
        .map(|mount| mount.point)
        .collect();
    points.sort();
    points.dedup();
    Ok(points)
}

/// Creates a group in all hierarchies, ready for processes.
pub(crate) fn ensure(group: &Path) -> Result<(), LocalHypervisorError> {
    let points = hierarchies()?;
    if points.is_empty() {
        return Err(LocalHypervisorError::NoCgroups);
    }
    for point in &points {
        let mut directory = point.clone();
        for name in group {
            if points.len() == 1 {
                delegate(&directory)?;
            }
            let parent = directory.clone();
            directory.push(name);
            make_dir(&directory, 0o755)?;
            inherit_cpuset(&parent, &directory)?;
        }
    }
    Ok(())
}

/// Moves this process into a group.
pub(crate) fn join(group: &Path) -> Result<(), LocalHypervisorError> {
    for point in hierarchies()? {
        let path = point.join(group).join("cgroup.procs");
        fs::write(&path, "0").map_err(LocalHypervisorError::file("move into", path))?;
    }
    Ok(())
}

/// Makes a group the root of every hierarchy in the calling thread's mount namespace.
pub(crate) fn mount_as_root(group: &Path) -> Result<(), LocalHypervisorError> {
    for point in hierarchies()? {
        let source = point.join(group);
        let tree = open_tree(CWD, &source, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
            .map_err(LocalHypervisorError::file("take", source))?;
        // Unmount the whole hierarchy: runtimes use the first mount that they find.
        unmount(&point, UnmountFlags::DETACH).map_err(LocalHypervisorError::file("unmount", &point))?;
        move_mount(tree, "", CWD, &point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(LocalHypervisorError::file("mount a cgroup at", point))?;
    }
    Ok(())
}

/// Returns the processes in a group and in those below it.
pub(crate) fn processes(group: &Path) -> Result<BTreeSet<i32>, LocalHypervisorError> {
    let mut pids = BTreeSet::new();
    for point in hierarchies()? {
        for directory in tree(&point.join(group))? {
            let path = directory.join("cgroup.procs");
            // A group can disappear at any moment, and threaded groups have no list.
            let text = match fs::read_to_string(&path) {
                Err(error) if is_gone_or_threaded(&error) => continue,
                read => read.map_err(LocalHypervisorError::file("read", path))?,
            };
            pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
    }
    // Zero stands for processes of other pid namespaces.
    pids.remove(&0);
    Ok(pids)
}

/// Removes a group and those below it from all hierarchies. Returns `false` if one still has a process.
pub(crate) fn remove(group: &Path) -> Result<bool, LocalHypervisorError> {
    let mut all_gone = true;
    for point in hierarchies()? {
        for directory in tree(&point.join(group))?.into_iter().rev() {
            match none_if_missing(fs::remove_dir(&directory)) {
                Ok(_) => {}
                Err(error) if is_in_use(&error) => all_gone = false,
                Err(error) => return Err(LocalHypervisorError::file("remove", directory)(error)),
            }
        }
    }
    Ok(all_gone)
}

/// Removes a group if it has neither processes nor groups.
pub(crate) fn remove_if_empty(group: &Path) -> Result<(), LocalHypervisorError> {
    for point in hierarchies()? {
        let directory = point.join(group);
        match none_if_missing(fs::remove_dir(&directory)) {
            Err(error) if !is_in_use(&error) => return Err(LocalHypervisorError::file("remove", directory)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the names of the groups in a group.
pub(crate) fn children(group: &Path) -> Result<BTreeSet<String>, LocalHypervisorError> {
    let mut names = BTreeSet::new();
    for point in hierarchies()? {
        let directories = subdirectories(&point.join(group))?;
        let name = |path: &PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
        names.extend(directories.iter().filter_map(name));
    }
    Ok(names)
}

/// Enables controllers for the groups in this one. Controllers that are already enabled stay unchanged.
fn delegate(directory: &Path) -> Result<(), LocalHypervisorError> {
    let words = |name: &str| -> Result<BTreeSet<String>, LocalHypervisorError> {
        let path = directory.join(name);
        let text = none_if_missing(fs::read_to_string(&path)).map_err(LocalHypervisorError::file("read", path))?;
        Ok(text.unwrap_or_default().split_whitespace().map(str::to_owned).collect())
    };
    let there = words("cgroup.controllers")?;
    let passed_on = words("cgroup.subtree_control")?;
    let missing: Vec<String> = DELEGATED
        .iter()
        .filter(|name| there.contains(**name) && !passed_on.contains(**name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let path = directory.join("cgroup.subtree_control");
    fs::write(&path, missing.join(" ")).map_err(LocalHypervisorError::file("write", path))
}

/// Copies the parent's processors and memory nodes. In version 1, a new group has none, and accepts no process without them.
fn inherit_cpuset(parent: &Path, directory: &Path) -> Result<(), LocalHypervisorError> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let path = directory.join(name);
        let own = none_if_missing(fs::read_to_string(&path)).map_err(LocalHypervisorError::file("read", &path))?;
        let inherited = fs::read_to_string(parent.join(name));
        if let (Some(own), Ok(inherited)) = (own, inherited)
            && own.trim().is_empty()
            && !inherited.trim().is_empty()
        {
            fs::write(&path, inherited).map_err(LocalHypervisorError::file("write", path))?;
        }
    }
    Ok(())
}

/// Returns a directory and all directories below it, parents first. Returns nothing if it is missing.
fn tree(top: &Path) -> Result<Vec<PathBuf>, LocalHypervisorError> {
    let mut found = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        if directory.exists() {
            open.extend(subdirectories(&directory)?);
            found.push(directory);
        }
    }
    Ok(found)
}

fn subdirectories(directory: &Path) -> Result<Vec<PathBuf>, LocalHypervisorError> {
    let list = || -> io::Result<Vec<PathBuf>> {
        let Some(entries) = none_if_missing(fs::read_dir(directory))? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        Ok(found)
    };
    list().map_err(LocalHypervisorError::file("list", directory))
}

fn is_gone_or_threaded(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP))
}

fn is_in_use(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::BUSY | Errno::NOTEMPTY))
}
