//! Processes of others, held by a file descriptor so that a reused process id is never meant.

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
    /// The process of this id, if it is the one that `is_meant` describes; it is asked once the id is held.
    pub(super) fn open(pid: u32, is_meant: impl FnOnce(&Path) -> bool) -> Option<Self> {
        let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let descriptor = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        is_meant(&PathBuf::from(format!("/proc/{pid}"))).then_some(Self { descriptor })
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub(super) fn kill(&self) -> io::Result<()> {
        // ESRCH: it has ended by itself.
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
        let deadline = Timespec::try_from(Duration::from_secs(10)).map_err(io::Error::other)?;
        let mut ended = [PollFd::new(&self.descriptor, PollFlags::IN)];
        match poll(&mut ended, Some(&deadline))? {
            0 => Err(io::Error::new(io::ErrorKind::TimedOut, "a killed process did not end")),
            _ => Ok(()),
        }
    }
}

/// The ids of all processes there are.
pub(super) fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// When a process started, in ticks since boot: the 22nd field of its `stat`. With its id, that names it for good.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name, which may hold anything but ends with the last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}
