//! The process that becomes a machine's containerd, or its agent.
//!
//! It must be a process of its own with one thread, because cgroups apply to whole processes, and only a process with one thread can enter a
//! mount namespace. The program that creates machines therefore starts itself again, with a hidden command that calls [`run_machine`].

use core::convert::Infallible;
use std::{
    ffi::{CString, OsString},
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::{
    fs::{CWD, Mode},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount, open_tree,
    },
    process::{Pid, PidfdFlags, pidfd_open, setsid, umask},
    system::sethostname,
    thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces},
};
use serde::{Deserialize, Serialize};

use crate::{LocalHypervisorError, cgroup, files::make_dir, namespace, user::become_user};

/// How to start a program that calls [`run_machine`]. The path of the launch file is appended to the arguments.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// An absolute path, such as that of the running program.
    pub program: PathBuf,
    /// The arguments that select its hidden command.
    pub arguments: Vec<OsString>,
}

/// What the process becomes: the content of `launch.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) host_name: String,
    /// The path of the network namespace.
    pub(crate) network: PathBuf,
    pub(crate) cgroup: PathBuf,
    /// The group inside `cgroup` that the process joins.
    pub(crate) group: String,
    /// A process that already has the machine's other namespaces, such as a shim that outlived containerd.
    pub(crate) beside: Option<i32>,
    pub(crate) binds: Vec<Bind>,
    pub(crate) overlays: Vec<Overlay>,
    /// The user of the process. `None` means root.
    pub(crate) user: Option<u32>,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

/// A directory of the host, and its path in the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bind {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
}

/// A directory of the host in which the machine's changes are visible only to the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overlay {
    pub(crate) target: PathBuf,
    /// The directory of the changes.
    pub(crate) upper: PathBuf,
    /// The work directory of the kernel.
    pub(crate) work: PathBuf,
}

/// Turns this process into a machine's containerd, or its agent. It returns only on an error.
///
/// Call it before the process has a second thread. `launch` is the file that [`create`](crate::create) wrote.
pub fn run_machine(launch: &Path) -> Result<Infallible, LocalHypervisorError> {
    let text = fs::read(launch).map_err(LocalHypervisorError::file("read", launch))?;
    let launch: Launch = serde_json::from_slice(&text)
        .map_err(|source| LocalHypervisorError::Record { path: launch.to_owned(), source })?;
    // In a session of its own, the process receives no signal of a terminal. This fails only if the process already leads a group.
    let _ = setsid();
    // Images are unpacked with their own modes, whatever the umask of the user's shell is.
    umask(Mode::WGRP | Mode::WOTH);
    match launch.beside {
        Some(pid) => enter(pid, &launch.cgroup.join(&launch.group))?,
        None => make_namespaces(&launch)?,
    }
    launch.user.map_or(Ok(()), become_user).map_err(LocalHypervisorError::system("switch to the agent's user"))?;
    let error = Command::new(&launch.program).args(&launch.arguments).env_clear().envs(launch.environment).exec();
    Err(LocalHypervisorError::Spawn { program: launch.program, source: error })
}

/// Joins a cgroup, and enters the namespaces of a process, so that running containers and new ones have the same mounts.
pub(crate) fn enter(pid: i32, group: &Path) -> Result<(), LocalHypervisorError> {
    cgroup::join(group)?;
    let doing = "enter the machine's namespaces";
    let pid = Pid::from_raw(pid).ok_or(rustix::io::Errno::SRCH);
    let shim = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())).map_err(LocalHypervisorError::system(doing))?;
    let all = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::CONTROL_GROUP
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::NETWORK;
    move_into_thread_name_spaces(shim.as_fd(), all).map_err(LocalHypervisorError::system(doing))
}

fn make_namespaces(launch: &Launch) -> Result<(), LocalHypervisorError> {
    namespace::join(&launch.network)?;
    // The root of a cgroup namespace is the group in which it is created. In version 2, a root that has groups with controllers cannot have
    // processes, so containerd then moves to a group beside those of the containers.
    cgroup::join(&launch.cgroup)?;
    namespace::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP | UnshareFlags::NEWUTS)?;
    cgroup::join(&launch.cgroup.join(&launch.group))?;
    sethostname(launch.host_name.as_bytes()).map_err(LocalHypervisorError::system("set the host name"))?;
    // Mounts of the machine are not visible outside, but unmounts of the host take effect in the machine, too.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(LocalHypervisorError::system("separate the mounts from those of the host"))?;
    cgroup::mount_as_root(&launch.cgroup)?;
    // Overlays come first, because the binds hide the directories that they use.
    launch.overlays.iter().try_for_each(Overlay::mount)?;
    bind_all(&launch.binds)
}

impl Overlay {
    fn mount(&self) -> Result<(), LocalHypervisorError> {
        let Self { target, upper, work } = self;
        make_dir(upper, 0o755)?;
        make_dir(work, 0o700)?;
        let data = format!("lowerdir={},upperdir={},workdir={}", target.display(), upper.display(), work.display());
        let data = CString::new(data).map_err(LocalHypervisorError::file("mount an overlay at", target))?;
        mount("overlay", target, "overlay", MountFlags::empty(), data.as_c_str())
            .map_err(LocalHypervisorError::file("mount an overlay at", target))
    }
}

/// Binds all directories. It opens all sources first, because a target may hide another source.
fn bind_all(binds: &[Bind]) -> Result<(), LocalHypervisorError> {
    let taken: Result<Vec<OwnedFd>, LocalHypervisorError> = binds.iter().map(|bind| take(&bind.source)).collect();
    for (tree, Bind { target, .. }) in taken?.iter().zip(binds) {
        make_dir(target, 0o755)?;
        move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(LocalHypervisorError::file("mount", target))?;
    }
    Ok(())
}

fn take(source: &Path) -> Result<OwnedFd, LocalHypervisorError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, source, flags).map_err(LocalHypervisorError::file("take", source))
}
