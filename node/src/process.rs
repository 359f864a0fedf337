//! Processes that outlive the one that started them: known by id and start, so that a number that is used again is nobody's.

use std::{env, fs, io, os::fd::OwnedFd, path::Path, process::Command, time::Duration};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::{io::unix::AsyncFd, time::timeout};

use crate::files::{self, NodeFileError};

/// What of this process' surroundings is for those that it starts: a proxy, above all, is not.
const KEPT: [&str; 5] = ["PATH", "LANG", "TZ", "RUST_BACKTRACE", "JOURNAL_STREAM"];
/// Where programs are, where nobody says.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Gives a command a short environment, and no directory of this process to hold.
pub(crate) fn clear_environment(command: &mut Command) {
    command.env_clear().env("PATH", PATH).current_dir("/");
    command.envs(KEPT.iter().filter_map(|name| Some((name, env::var_os(name)?))));
}

/// A process of some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// In ticks since the machine's start (`/proc/PID/stat`, field 22).
    pub(crate) started: u64,
}

impl ProcessId {
    /// The process that has this number now; none where it has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = read_stat(&stat)?;
        (state != 'Z' && state != 'X').then_some(Self { pid, started })
    }

    /// Whether it still runs.
    pub(crate) fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// A handle to it, as long as it runs.
    pub(crate) fn open(self) -> Option<Handle> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The number may have been used again before the handle was had.
        self.is_running().then_some(Handle { id: self, handle })
    }

    /// The one that was kept in a file, where it still runs.
    pub(crate) fn load(path: &Path) -> Result<Option<Self>, NodeFileError> {
        // What was not on disk when the machine died is of a process that died with it.
        let id = files::read(path)?.and_then(|text| serde_json::from_str::<Self>(&text).ok());
        Ok(id.filter(|id| id.is_running()))
    }
}

/// A process that can be waited for and told to end, whoever started it.
pub(crate) struct Handle {
    pub(crate) id: ProcessId,
    handle: OwnedFd,
}

impl Handle {
    /// Waits for its end.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        #[expect(deprecated, reason = "its successor is unsafe, and a file descriptor that is owned cannot change")]
        let handle = AsyncFd::with_interest(self.handle.try_clone()?, tokio::io::Interest::READABLE)?;
        handle.readable().await.map(drop)
    }

    /// Asks it to end; one that has ended is fine.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.handle, signal) {
            tracing::debug!(%error, pid = self.id.pid, "a signal is lost");
        }
    }

    /// Ends it: with notice, and after `grace` without.
    pub(crate) async fn end(&self, grace: Duration) -> io::Result<()> {
        self.signal(Signal::TERM);
        if let Ok(ended) = timeout(grace, self.ended()).await {
            return ended;
        }
        self.signal(Signal::KILL);
        self.ended().await
    }
}

/// State and start of `PID (NAME) STATE ..`; the name may hold anything.
fn read_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, words.nth(18)?.parse().ok()?))
}

/// All processes of that name.
pub(crate) fn named(name: &str) -> Vec<u32> {
    let is_named = |pid: &u32| {
        let found = fs::read_to_string(format!("/proc/{pid}/comm"));
        found.is_ok_and(|found| found.trim_end() == name)
    };
    of_this_network().into_iter().filter(is_named).collect()
}

/// All processes of this machine that have not ended.
pub(crate) fn of_this_network() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| same_network(*pid) && ProcessId::of(*pid).is_some()).collect()
}

/// What is in another network is another machine's, as far as a worker is concerned.
fn same_network(pid: u32) -> bool {
    let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/net")).ok();
    of(&pid.to_string()) == of("self")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_reaches_what_is_started() {
        let mut command = Command::new("env");
        command.env("HTTPS_PROXY", "http://proxy:1").env("KEELWAY", "1");
        clear_environment(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.lines().all(|line| KEPT.iter().any(|name| line.starts_with(&format!("{name}=")))), "{said}");
        assert!(said.contains("PATH="));
    }

    #[test]
    fn a_line_of_the_kernel_is_read_whatever_the_name() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 6 7";
        assert_eq!(read_stat(line), Some(('S', 12345)));
    }

    #[tokio::test]
    async fn a_process_is_known_until_it_ends() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(!ProcessId { started: id.started + 1, ..id }.is_running());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("process");
        fs::write(&path, "").unwrap();
        assert_eq!(ProcessId::load(&path).unwrap(), None);
        files::write_json_volatile(&path, &id).unwrap();
        assert_eq!(ProcessId::load(&path).unwrap(), Some(id));
        let handle = id.open().unwrap();
        handle.end(Duration::from_secs(60)).await.unwrap();
        child.wait().unwrap();
        assert!(!id.is_running());
        assert!(id.open().is_none());
    }
}
