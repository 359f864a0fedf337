//! Network namespaces, kept alive by a mount of their own.
//!
//! Not `ip netns`: that leaves a mount at `/run/netns` behind, and hides the cgroups from what it runs.

use std::{
    fs::File,
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use rustix::{
    fs::statfs,
    mount::mount_bind,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use crate::LocalHypervisorError;

/// `NSFS_MAGIC` of `linux/magic.h`: the file system of namespaces.
const NSFS: i64 = 0x6e73_6673;

/// The calling thread's network namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// Whether a namespace is mounted there.
pub(crate) fn is_pinned(pin: &Path) -> bool {
    statfs(pin).is_ok_and(|stat| stat.f_type == NSFS)
}

/// Makes a network namespace, prepares it, and mounts it at `pin` only then: what is pinned is complete.
pub(crate) fn create(
    pin: &Path,
    prepare: impl FnOnce() -> Result<(), LocalHypervisorError> + Send,
) -> Result<(), LocalHypervisorError> {
    on_a_thread(|| {
        unshare(UnshareFlags::NEWNET)?;
        prepare()?;
        File::create(pin).map_err(LocalHypervisorError::file("make", pin))?;
        mount_bind(OWN, pin).map_err(LocalHypervisorError::file("mount a namespace at", pin))
    })
}

/// Runs a function, and the programs that it starts, in a namespace.
pub(crate) fn within<T: Send>(
    pin: &Path,
    function: impl FnOnce() -> Result<T, LocalHypervisorError> + Send,
) -> Result<T, LocalHypervisorError> {
    on_a_thread(|| {
        join(pin)?;
        function()
    })
}

/// Moves the calling thread.
pub(crate) fn join(pin: &Path) -> Result<(), LocalHypervisorError> {
    let file = File::open(pin).map_err(LocalHypervisorError::file("open", pin))?;
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
        .map_err(LocalHypervisorError::file("enter the namespace", pin))
}

/// Leaves namespaces of the calling thread for new ones.
pub(crate) fn unshare(flags: UnshareFlags) -> Result<(), LocalHypervisorError> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for the sake of UnshareFlags::FILES, which nobody passes here"
    )]
    rustix::thread::unshare(flags).map_err(LocalHypervisorError::system("make a namespace"))
}

/// The namespace of this process, as a path that `ip` takes in another one.
pub(crate) fn of_this_process() -> PathBuf {
    format!("/proc/{}/ns/net", std::process::id()).into()
}

/// Namespaces belong to threads; one that is done for ends with its thread.
fn on_a_thread<T: Send>(
    function: impl FnOnce() -> Result<T, LocalHypervisorError> + Send,
) -> Result<T, LocalHypervisorError> {
    thread::scope(|scope| scope.spawn(function).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
