//! Runs one program of a test run and keeps its log.

use std::{
    fs::{self, File},
    io::Write,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The time limit of one program. The entire run may take 90 minutes, and the report of a program that hangs must fit into that time.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// The unit in which the kernel counts processor time: `USER_HZ`, which is 100 on every architecture that Rust's standard library supports.
const TICKS: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct ProgramExit {
    pub(crate) status: ExitStatus,
    pub(crate) began: Instant,
    pub(crate) wall: Duration,
    /// The processor time in seconds of the program and of all its children that were waited for.
    pub(crate) cpu: f64,
    pub(crate) log: PathBuf,
}

/// Runs a program to its end. Its stdout and stderr are written to a file.
pub(crate) fn run(command: &mut Command, log: &Path) -> Result<ProgramExit> {
    let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let second = file.try_clone().with_context(|| format!("open {}", log.display()))?;
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(second)
        .spawn()
        .with_context(|| format!("run {}", command.get_program().display()))?;
    let pid = Pid::from_child(&child);
    if !ends_in_time(pid)? {
        child.kill().context("end a test that hangs")?;
        ends_in_time(pid)?;
        let words = format!("\nstopped after {} minutes\n", LONGEST.as_secs() / 60);
        append(log, &words)?;
    }
    let cpu = processor_time(pid)?;
    let status = child.wait().context("wait for a test")?;
    Ok(ProgramExit { status, began, wall: began.elapsed(), cpu, log: log.to_owned() })
}

/// A pidfd becomes readable when its process ends.
fn ends_in_time(pid: Pid) -> Result<bool> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("watch a test")?;
    let limit = Timespec::try_from(LONGEST).context("watch a test")?;
    let mut ready = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    Ok(poll(&mut ready, Some(&limit)).context("watch a test")? > 0)
}

/// The kernel keeps the times until the exit status is collected: fields 14 to 17 of `proc_pid_stat(5)`.
fn processor_time(pid: Pid) -> Result<f64> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u32 = fields.skip(11).take(4).filter_map(|field| field.parse::<u32>().ok()).sum();
    Ok(f64::from(ticks) / TICKS)
}

fn append(log: &Path, words: &str) -> Result<()> {
    let opened = File::options().append(true).open(log);
    opened.and_then(|mut file| file.write_all(words.as_bytes())).with_context(|| format!("write {}", log.display()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::run;

    #[test]
    fn a_program_is_measured_with_its_children_and_its_log_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let busy = "echo out; echo err >&2; sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done'; exit 3";
        let ended = run(Command::new("sh").args(["-c", busy]), &log).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.cpu > 0.0 && ended.cpu <= ended.wall.as_secs_f64() * 1.5, "{ended:?}");
        assert_eq!(std::fs::read_to_string(log).unwrap(), "out\nerr\n");
    }
}
