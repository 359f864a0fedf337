//! Removes what a private containerd leaves: processes, mounts, cgroups, files.

use std::{
    env, fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process,
};

use rustix::mount::{UnmountFlags, unmount};

use super::process::{TestProcess, all, start_of};

const PREFIX: &str = "keelway-";
/// The file that marks a directory as one of a private containerd.
pub(super) const CONFIGURATION: &str = "containerd.toml";

/// Returns the directory of a test's containerd, by which everything else of it is found. Its name contains the test, the process id and the start
/// time of the process. The numbers are hexadecimal because containerd allows at most 42 characters for the sockets of shims.
pub(super) fn directory_for(test: &str) -> io::Result<PathBuf> {
    let pid = process::id();
    let start = start_of(pid).ok_or_else(|| io::Error::other("/proc does not show this process"))?;
    Ok(env::temp_dir().join(format!("{PREFIX}{test}-{pid:x}-{start:x}")))
}

/// Removes what tests left whose process has ended.
pub(super) fn remove_leftovers() -> io::Result<()> {
    for entry in fs::read_dir(env::temp_dir())?.flatten() {
        let path = entry.path();
        if entry.file_name().to_str().is_some_and(orphaned) && path.join(CONFIGURATION).is_file() {
            clear(&path)?;
        }
    }
    Ok(())
}

fn orphaned(name: &str) -> bool {
    let mut words = name.rsplit('-');
    let (Some(start), Some(pid)) = (words.next(), words.next()) else {
        return false;
    };
    let (Ok(start), Ok(pid)) = (u64::from_str_radix(start, 16), u32::from_str_radix(pid, 16)) else {
        return false;
    };
    name.starts_with(PREFIX) && start_of(pid) != Some(start)
}

/// Ends everything that was started from this directory, and removes it. Succeeds if nothing is there.
pub(super) fn clear(directory: &Path) -> io::Result<()> {
    for program in ["containerd", "containerd-shim-runc-v2"] {
        for process in started_from(directory, program) {
            process.kill()?;
        }
    }
    for process in first_processes(directory) {
        process.kill()?;
    }
    unmount_all(directory)?;
    for cgroup in cgroups(directory) {
        remove_cgroup(&cgroup)?;
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the processes of `program` that have a path in the directory among their arguments.
fn started_from(directory: &Path, program: &str) -> Vec<TestProcess> {
    let is_meant = |process: &Path| {
        let Ok(line) = fs::read(process.join("cmdline")) else {
            return false;
        };
        let mut words = line.split(|byte| *byte == 0);
        let called = words.next().map(|word| word.rsplit(|byte| *byte == b'/').next() == Some(program.as_bytes()));
        called == Some(true) && words.any(|word| inside(word, directory))
    };
    all().into_iter().filter_map(|pid| TestProcess::open(pid, is_meant)).collect()
}

fn inside(path: &[u8], directory: &Path) -> bool {
    path.strip_prefix(directory.as_os_str().as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns the first process of each container and sandbox. The bundle holds its process id, and its cgroup's name contains the id of the container.
/// This check excludes a reused process id.
fn first_processes(directory: &Path) -> Vec<TestProcess> {
    let bundles = directory.join("state/io.containerd.runtime.v2.task/k8s.io");
    let Ok(bundles) = fs::read_dir(bundles) else {
        return Vec::new();
    };
    let first = |bundle: fs::DirEntry| {
        let pid = fs::read_to_string(bundle.path().join("init.pid")).ok()?.trim().parse().ok()?;
        let id = bundle.file_name().into_string().ok()?;
        TestProcess::open(pid, |process| {
            fs::read_to_string(process.join("cgroup")).is_ok_and(|cgroup| cgroup.contains(&id))
        })
    };
    bundles.flatten().filter_map(first).collect()
}

fn unmount_all(directory: &Path) -> io::Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut points: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| inside(point.as_bytes(), directory))
        .collect();
    points.reverse();
    for point in points {
        unmount(point, UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Returns the cgroups that have the directory's name: one in each hierarchy of version 1, or one of version 2.
fn cgroups(directory: &Path) -> Vec<PathBuf> {
    let Some(name) = directory.file_name() else {
        return Vec::new();
    };
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    hierarchies
        .chain([root.to_owned()])
        .map(|hierarchy| hierarchy.join(name))
        .filter(|cgroup| cgroup.is_dir())
        .collect()
}

fn remove_cgroup(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}
