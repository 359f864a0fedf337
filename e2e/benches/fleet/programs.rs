//! The programs of a fleet as processes, as they ship.

use std::{env, fs, path::PathBuf, process::Child, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::plane;

/// A program that is killed on drop.
pub(crate) struct FleetProgram(Child);

impl FleetProgram {
    /// Starts a program of the directory of the program under test.
    pub(crate) fn start(name: &str, program: &str, arguments: &[String]) -> Self {
        let program = PathBuf::from(env::var_os("KEELWAY_TEST_PROGRAM").unwrap()).with_file_name(program);
        Self(plane::start(name, program.to_str().unwrap(), arguments))
    }

    /// Ends the program by SIGTERM.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }

    /// Returns the resident memory in MiB.
    pub(crate) fn resident(&self) -> f64 {
        memory(self.0.id(), "VmRSS:")
    }
}

impl Drop for FleetProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the anonymous memory in MiB of all processes whose command line contains one of these texts.
pub(crate) fn anonymous(texts: &[String]) -> f64 {
    let processes =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        texts.iter().any(|text| line.contains(text.as_str()))
    };
    processes.filter(is_one).map(|pid| memory(pid, "RssAnon:")).sum()
}

fn memory(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    let kib: u32 = line.trim().trim_end_matches(" kB").parse().unwrap_or_default();
    f64::from(kib) / 1024.0
}

/// Returns the value of a metric that a program serves on a socket.
pub(crate) async fn metric(socket: &str, name: &str) -> Option<f64> {
    let mut stream = UnixStream::connect(socket).await.ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until a metric is at least this.
pub(crate) async fn reaches(socket: &str, name: &str, least: f64) {
    loop {
        if metric(socket, name).await.is_some_and(|value| value >= least) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
