//! Processes that outlive the process that started them. Id and start time identify them, so that a reused id is not mistaken for them.

use std::{env, fs, io, os::fd::OwnedFd, path::Path, process::Command, time::Duration};

use rustix::{
    fs::Mode,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, umask},
};
use serde::{Deserialize, Serialize};
use tokio::{io::unix::AsyncFd, time::timeout};

use crate::files::{self, NodeFileError};

/// The environment variables that started processes inherit. Proxy variables, above all, are not among them.
const KEPT: [&str; 2] = ["RUST_BACKTRACE", "JOURNAL_STREAM"];
/// The search path of programs.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Sets the umask, so that new files have the mode that their creator requests, independent of the user's shell. Child processes inherit it. The
/// kubelet relies on that: pods that do not run as root read files that it creates.
pub(crate) fn set_umask() {
    umask(Mode::WGRP | Mode::WOTH);
}

/// Replaces the environment of a command, and sets its working directory to `/`, so that it does not keep the directory of this process busy.
pub(crate) fn clear_environment(command: &mut Command) {
    command.env_clear().env("PATH", PATH).current_dir("/");
    command.envs(KEPT.iter().filter_map(|name| Some((name, env::var_os(name)?))));
}

/// A process, identified by its id and its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// In ticks since the machine's start (`/proc/PID/stat`, field 22).
    pub(crate) started: u64,
}

impl ProcessId {
    /// Returns the process that has this id now, or `None` if it has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = read_stat(&stat)?;
        (state != 'Z' && state != 'X').then_some(Self { pid, started })
    }

    /// Whether the process still runs.
    pub(crate) fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Returns a handle to the process, if it still runs.
    pub(crate) fn open(self) -> Option<Handle> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The id may have been reused before the handle was opened.
        self.is_running().then_some(Handle { id: self, handle })
    }

    /// Returns the process that is stored in a file, if it still runs.
    pub(crate) fn load(path: &Path) -> Result<Option<Self>, NodeFileError> {
        // A file that cannot be parsed was not on disk when the machine crashed, and its process ended then, too.
        let id = files::read(path)?.and_then(|text| serde_json::from_str::<Self>(&text).ok());
        Ok(id.filter(|id| id.is_running()))
    }
}

/// A handle to a process, with which any process can wait for it and end it.
pub(crate) struct Handle {
    pub(crate) id: ProcessId,
    handle: OwnedFd,
}

impl Handle {
    /// Waits for the process to end.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        #[expect(deprecated, reason = "its successor is unsafe, and a file descriptor that is owned cannot change")]
        let handle = AsyncFd::with_interest(self.handle.try_clone()?, tokio::io::Interest::READABLE)?;
        handle.readable().await.map(drop)
    }

    /// Sends a signal. A process that has ended is ignored.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.handle, signal) {
            tracing::debug!(%error, pid = self.id.pid, "cannot send a signal");
        }
    }

    /// Ends the process with SIGTERM, and after `grace` with SIGKILL.
    pub(crate) async fn end(&self, grace: Duration) -> io::Result<()> {
        self.signal(Signal::TERM);
        if let Ok(ended) = timeout(grace, self.ended()).await {
            return ended;
        }
        self.signal(Signal::KILL);
        self.ended().await
    }
}

/// Parses state and start time of `PID (NAME) STATE ..`. The name may contain any characters.
fn read_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, words.nth(18)?.parse().ok()?))
}

/// Returns all processes with this name in this network namespace.
pub(crate) fn named(name: &str) -> Vec<u32> {
    let is_named = |pid: &u32| {
        let found = fs::read_to_string(format!("/proc/{pid}/comm"));
        found.is_ok_and(|found| found.trim_end() == name)
    };
    of_this_network().into_iter().filter(is_named).collect()
}

/// Returns all running processes in this network namespace.
pub(crate) fn of_this_network() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| same_network(*pid) && ProcessId::of(*pid).is_some()).collect()
}

/// Whether a process is in this network namespace. For a worker, another namespace is another machine.
fn same_network(pid: u32) -> bool {
    let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/net")).ok();
    of(&pid.to_string()) == of("self")
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::isolated::within;

    #[test]
    fn started_programs_inherit_nothing_of_the_users_shell() {
        // Umask and working directory are this thread's own here.
        within(UnshareFlags::FS, || {
            let directory = tempfile::tempdir().unwrap();
            env::set_current_dir(directory.path()).unwrap();
            umask(Mode::RWXG | Mode::RWXO);
            set_umask();
            let mut command = Command::new("sh");
            command.args(["-c", "umask; pwd; env"]);
            for name in ["HTTPS_PROXY", "LANG", "KEELWAY", "PATH"] {
                command.env(name, "of-the-user");
            }
            clear_environment(&mut command);
            let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let (first, environment) = printed.split_at(printed.match_indices('\n').nth(1).unwrap().0);
            assert_eq!(first, "0022\n/");
            assert!(!environment.contains("of-the-user"), "{printed}");
            // The shell itself sets `PWD`, and others do, too.
            let own = ["PATH", "PWD", "OLDPWD", "SHLVL", "_"];
            let is_known =
                |line: &str| [&own[..], &KEPT].concat().iter().any(|name| line.starts_with(&format!("{name}=")));
            assert!(environment.trim().lines().all(is_known), "{printed}");
            assert!(environment.contains(&format!("PATH={PATH}")), "{printed}");
        });
    }

    #[test]
    fn process_stat_is_parsed_for_any_program_name() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 6 7";
        assert_eq!(read_stat(line), Some(('S', 12345)));
    }

    #[tokio::test]
    async fn a_process_is_found_until_it_ends() {
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
