//! Processes. Signals and waits use a pidfd, so that a reused process id cannot be affected.

use std::{
    fs, io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::deadline;

fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn ended_within(process: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// Returns whether a process ends within the limit.
pub fn ends_within(pid: u32, limit: Duration) -> bool {
    open(pid).is_none_or(|process| ended_within(&process, limit))
}

/// Sends a signal.
pub fn signal(pid: u32, signal: Signal) {
    pidfd_send_signal(open(pid).unwrap(), signal).unwrap();
}

/// Kills a process and waits until it has ended. Returns how long that took.
pub fn kill(pid: u32) -> Duration {
    let started = Instant::now();
    let process = open(pid).unwrap();
    pidfd_send_signal(&process, Signal::KILL).unwrap();
    assert!(ended_within(&process, deadline::READ), "a killed process did not end");
    started.elapsed()
}

/// Kills processes at the same time and waits until all have ended. One process may end because another one did.
pub fn kill_all(pids: impl IntoIterator<Item = u32>) {
    let processes: Vec<OwnedFd> = pids.into_iter().map(|pid| open(pid).unwrap()).collect();
    for process in &processes {
        let sent = pidfd_send_signal(process, Signal::KILL);
        assert!(matches!(sent, Ok(()) | Err(Errno::SRCH)), "{sent:?}");
    }
    assert!(processes.iter().all(|process| ended_within(process, deadline::READ)), "a killed process did not end");
}

/// Returns the ids of all processes.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Reads a file of a process. Returns an error if the process has ended.
pub fn file(pid: u32, name: &str) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{pid}/{name}"))
}

/// Returns a field of the `status` file of a process, such as `CapEff`.
pub fn status(pid: u32, field: &str) -> Option<String> {
    let text = String::from_utf8(file(pid, "status").ok()?).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}
