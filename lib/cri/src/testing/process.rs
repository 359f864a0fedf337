//! Other processes, held by a file descriptor, so that a signal never reaches a process with a reused id.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

pub(super) struct TestProcess {
    descriptor: OwnedFd,
}

impl TestProcess {
    /// Opens the process with this id if `is_meant` accepts its directory in `/proc`. The check runs after the descriptor is open.
    pub(super) fn open(pid: u32, is_meant: impl FnOnce(&Path) -> bool) -> Option<Self> {
        let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let descriptor = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        is_meant(&PathBuf::from(format!("/proc/{pid}"))).then_some(Self { descriptor })
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub(super) fn kill(&self) -> io::Result<()> {
        // ESRCH: the process has ended by itself.
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
        let deadline = Timespec::try_from(Duration::from_secs(10)).map_err(io::Error::other)?;
        let mut ended = [PollFd::new(&self.descriptor, PollFlags::IN)];
        match poll(&mut ended, Some(&deadline))? {
            0 => Err(io::Error::new(io::ErrorKind::TimedOut, "a killed process did not end")),
            _ => Ok(()),
        }
    }
}

/// Returns the ids of all processes.
pub(super) fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns when a process started, in clock ticks since boot: field 22 of its `stat`. Together with the process id, this identifies a process
/// uniquely.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 2 is the program's name. It can contain any character, but ends at the last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}
