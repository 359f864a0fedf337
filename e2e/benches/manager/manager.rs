//! The manager as a separate process, as users run it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use keelway_api::jiff::Timestamp;
use keelway_e2e::process;
use rustix::process::Signal;
use serde_json::Value;

use crate::{host::WORK, plane, shares};

/// If the log has no new line for this time, the manager has nothing to do.
const QUIET: Duration = Duration::from_secs(3);
/// The interval between reads of the log.
const LOOK: Duration = Duration::from_millis(250);
/// The time limit for creating all clusters: many times what it takes.
const DEADLINE: Duration = Duration::from_secs(3600);
/// The time limit for all consequences of one change: many times what they take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The time limit for an orderly exit.
const END: Duration = Duration::from_secs(60);

pub(crate) struct Manager {
    process: Child,
    log: PathBuf,
    started: Timestamp,
}

/// The state of the manager's log, as far as it has been read.
struct Log {
    lines: BufReader<fs::File>,
    settled: Option<Timestamp>,
    /// When the last line was read.
    last: Instant,
}

impl Manager {
    pub(crate) fn start(name: &str, kubeconfig: &str) -> Self {
        let log = plane::path(&format!("manager-{name}.log"));
        let images = Path::new(WORK).join("images");
        fs::create_dir_all(&images).unwrap();
        // The manager is in the directory of the program under test.
        let program = PathBuf::from(env::var_os("KEELWAY_TEST_PROGRAM").unwrap()).with_file_name("keelway-manager");
        let started = Timestamp::now();
        let process = Command::new(program)
            .args(["run", "--store=kubernetes", "--metrics-listen=127.0.0.1:0", "--kubeconfig", kubeconfig])
            .arg("--images")
            .arg(images)
            .env_clear()
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { process, log, started }
    }

    /// Waits until this number of clusters is available and the manager has nothing left to do. Returns the time that this took since `since`, or
    /// since the start of the manager.
    pub(crate) async fn settles(&mut self, clusters: usize, since: Option<Timestamp>) -> Duration {
        let since = since.unwrap_or(self.started);
        let is_over = |manager: &Self, log: &Log| log.last.elapsed() > QUIET && manager.available() == Some(clusters);
        self.settled(since, DEADLINE, is_over).await.duration_since(since).try_into().unwrap()
    }

    /// Waits until the manager logs that it is settled, at this time or later.
    pub(crate) async fn rests(&mut self, since: Timestamp) {
        self.settled(since, PATIENCE, |_, _| true).await;
    }

    /// Waits until the manager has logged at or after `since` that it is settled, and `holds` returns true. Returns the time of the last such log
    /// line.
    async fn settled(
        &mut self,
        since: Timestamp,
        deadline: Duration,
        holds: impl Fn(&Self, &Log) -> bool,
    ) -> Timestamp {
        let (mut log, began) = (Log::of(&self.log), Instant::now());
        loop {
            log.read();
            if let Some(settled) = log.settled.filter(|settled| *settled >= since)
                && holds(self, &log)
            {
                return settled;
            }
            let ended = self.process.try_wait().unwrap();
            let last_lines =
                || fs::read_to_string(&self.log).unwrap().lines().rev().take(20).collect::<Vec<_>>().join("\n");
            assert!(ended.is_none() && began.elapsed() < deadline, "it does not settle: {ended:?}\n{}", last_lines());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Returns the number of available clusters from the metrics.
    fn available(&self) -> Option<usize> {
        let answer = self.get("/metrics")?;
        let name = "keelway_clusters{state=\"Available\"} ";
        let number = answer.lines().find_map(|line| line.strip_prefix(name))?.trim();
        // Gauges are written as `7.0`.
        number.split('.').next()?.parse().ok()
    }

    fn get(&self, path: &str) -> Option<String> {
        let log = fs::read_to_string(&self.log).unwrap();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let address = lines.map(|line| line["fields"]["address"].clone()).find(Value::is_string)?;
        let mut stream = TcpStream::connect(address.as_str()?).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Returns the resident memory in MiB.
    pub(crate) fn resident(&self) -> f64 {
        let text = process::status(self.process.id(), "VmRSS").unwrap();
        text.trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
    }

    /// Returns the CPU time in seconds.
    pub(crate) fn processor_seconds(&self) -> f64 {
        let (_, seconds) = shares::of(self.process.id()).unwrap();
        seconds
    }

    /// Stops the manager with SIGTERM, and asserts that it exits successfully.
    pub(crate) fn stop(mut self) {
        process::signal(self.process.id(), Signal::TERM);
        assert!(process::ends_within(self.process.id(), END), "the manager ends when it is asked to");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Log {
    fn of(path: &Path) -> Self {
        Self { lines: BufReader::new(fs::File::open(path).unwrap()), settled: None, last: Instant::now() }
    }

    /// Reads the lines that were written since the last call.
    fn read(&mut self) {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            self.last = Instant::now();
            if line.contains("\"settled\"")
                && let Ok(event) = serde_json::from_str::<Value>(&line)
                && event["fields"]["message"] == "settled"
            {
                self.settled = Some(event["timestamp"].as_str().unwrap().parse().unwrap());
            }
            line.clear();
        }
    }
}
