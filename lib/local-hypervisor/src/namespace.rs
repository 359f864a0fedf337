//! Network namespaces, each kept alive by a bind mount.
//!
//! `ip netns` is not used, because it leaves a mount at `/run/netns`, and hides the cgroups from the programs that it runs.

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

/// Whether a namespace is mounted at the path.
pub(crate) fn is_pinned(pin: &Path) -> bool {
    statfs(pin).is_ok_and(|stat| stat.f_type == NSFS)
}

/// Creates a network namespace, prepares it, and only then mounts it at `pin`, so that a pinned namespace is always complete.
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

/// Moves the calling thread into a namespace.
pub(crate) fn join(pin: &Path) -> Result<(), LocalHypervisorError> {
    let file = File::open(pin).map_err(LocalHypervisorError::file("open", pin))?;
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
        .map_err(LocalHypervisorError::file("enter the namespace", pin))
}

/// Moves the calling thread into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> Result<(), LocalHypervisorError> {
    #[expect(deprecated, reason = "its successor is unsafe because of UnshareFlags::FILES, which is not used here")]
    rustix::thread::unshare(flags).map_err(LocalHypervisorError::system("create a namespace"))
}

/// Returns the namespace of this process, as a path that `ip` accepts in another namespace.
pub(crate) fn of_this_process() -> PathBuf {
    format!("/proc/{}/ns/net", std::process::id()).into()
}

/// Runs a function on a thread of its own. Namespaces belong to threads, and one without a mount ends with its thread.
fn on_a_thread<T: Send>(
    function: impl FnOnce() -> Result<T, LocalHypervisorError> + Send,
) -> Result<T, LocalHypervisorError> {
    thread::scope(|scope| scope.spawn(function).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
