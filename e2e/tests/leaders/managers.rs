//! Managers as processes.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use keelway_e2e::process;
use rustix::process::Signal;
use serde_json::Value;

use crate::{plane::path, wait};

/// Much shorter than the default.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// A manager. It ends with the test's host.
pub(crate) struct Manager {
    process: Child,
    log: PathBuf,
}

impl Manager {
    pub(crate) fn start(name: &str, kubeconfig: &str) -> Self {
        let seconds = format!("--leader-elect-lease-duration={}s", LEASE.as_secs());
        Self::run(name, |command| {
            command
                .args(["--store=kubernetes", "--kubeconfig", kubeconfig])
                .args(["--leader-elect", "--leader-elect-resource-namespace=default", &seconds])
                .args(["--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms"]);
        })
    }

    /// Starts a manager of a directory, without leader election.
    pub(crate) fn over_directory(name: &str, directory: &Path) -> Self {
        Self::run(name, |command| {
            command.arg(format!("--store=dir:{}", directory.display()));
            command.arg("--listen").arg(path("manager.sock"));
        })
    }

    fn run(name: &str, store: impl FnOnce(&mut Command)) -> Self {
        let log = path(&format!("manager-{name}.log"));
        // The build of the workspace puts it beside the programs of tests.
        let program = Path::new(env!("CARGO_BIN_EXE_fake-machine")).with_file_name("keelway-manager");
        let mut command = Command::new(&program);
        command.args(["run", "--metrics-listen=127.0.0.1:0"]);
        store(&mut command);
        let process = command
            .arg("--images")
            .arg(path("images"))
            .env_clear()
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { process, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Returns the fields of each log line.
    fn lines(&self) -> Vec<Value> {
        let log = self.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.map(|line| line["fields"].clone()).collect()
    }

    /// Waits until the manager leads, and returns the time that this took.
    pub(crate) async fn leads(&mut self) -> Duration {
        let began = Instant::now();
        wait::until("a manager leads", async || self.lines().iter().any(|line| line["term"].is_u64())).await;
        began.elapsed()
    }

    /// Waits until the manager is ready, and asserts that it does not lead.
    pub(crate) async fn stands_by(&self) {
        let is_ready = async || self.get("/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"));
        wait::until("another manager stands by", is_ready).await;
        assert!(self.lines().iter().all(|line| line["term"].is_null()), "{}", self.log());
    }

    /// Waits until the manager has nothing left to do.
    pub(crate) async fn settles(&self) {
        wait::until("it is settled", async || self.lines().iter().any(|line| line["message"] == "settled")).await;
    }

    fn get(&self, path: &str) -> Option<String> {
        let lines = self.lines();
        let address = lines.iter().find_map(|line| line["address"].as_str())?;
        let mut stream = TcpStream::connect(address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let answer = self.get("/metrics").unwrap();
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        process::signal(self.process.id(), signal);
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits until the manager has exited, and returns whether it succeeded.
    pub(crate) async fn ends(&mut self) -> bool {
        let id = self.process.id();
        tokio::task::spawn_blocking(move || assert!(process::ends_within(id, LEASE * 10))).await.unwrap();
        self.process.wait().unwrap().success()
    }
}
