//! The manager as people run it.

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

/// A manager says nothing for so long once it has nothing to do.
const QUIET: Duration = Duration::from_secs(3);
/// How often its log is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// A birth of all clusters, many times over.
const DEADLINE: Duration = Duration::from_secs(3600);
/// All that follows of one change, many times over.
const PATIENCE: Duration = Duration::from_secs(300);
/// An end in order.
const END: Duration = Duration::from_secs(60);

pub(crate) struct Manager {
    process: Child,
    log: PathBuf,
    started: Timestamp,
}

/// What a log has said so far.
struct Log {
    lines: BufReader<fs::File>,
    settled: Option<Timestamp>,
    /// When it said something last.
    last: Instant,
}

impl Manager {
    pub(crate) fn start(name: &str, kubeconfig: &str) -> Self {
        let log = plane::path(&format!("manager-{name}.log"));
        let images = Path::new(WORK).join("images");
        fs::create_dir_all(&images).unwrap();
        // That which is beside the program under test.
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

    /// Waits until this number of clusters is available and nothing is left to do anywhere. Returns how long that took from a
    /// moment on, else from its start.
    pub(crate) async fn settles(&mut self, clusters: usize, since: Option<Timestamp>) -> Duration {
        let since = since.unwrap_or(self.started);
        let is_over = |manager: &Self, log: &Log| log.last.elapsed() > QUIET && manager.available() == Some(clusters);
        self.settled(since, DEADLINE, is_over).await.duration_since(since).try_into().unwrap()
    }

    /// Waits until it says that nothing is left to do anywhere, later than this moment.
    pub(crate) async fn rests(&mut self, since: Timestamp) {
        self.settled(since, PATIENCE, |_, _| true).await;
    }

    /// Waits until it has said since a moment that nothing is left to do, and something holds. Returns when it said so last.
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
            let said = || fs::read_to_string(&self.log).unwrap().lines().rev().take(20).collect::<Vec<_>>().join("\n");
            assert!(ended.is_none() && began.elapsed() < deadline, "it does not settle: {ended:?}\n{}", said());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Clusters that are available, as its metrics tell.
    fn available(&self) -> Option<usize> {
        let answer = self.get("/metrics")?;
        let name = "keelway_clusters{state=\"Available\"} ";
        let number = answer.lines().find_map(|line| line.strip_prefix(name))?.trim();
        // A gauge is told as 7.0.
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

    /// Its resident memory, in MiB.
    pub(crate) fn resident(&self) -> f64 {
        let text = process::status(self.process.id(), "VmRSS").unwrap();
        text.trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
    }

    /// Its time on processors, in seconds.
    pub(crate) fn ran(&self) -> f64 {
        let (_, seconds) = shares::of(self.process.id()).unwrap();
        seconds
    }

    /// Ends it in order.
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

    /// Reads what was said meanwhile.
    fn read(&mut self) {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            self.last = Instant::now();
            if line.contains("\"settled\"")
                && let Ok(said) = serde_json::from_str::<Value>(&line)
                && said["fields"]["message"] == "settled"
            {
                self.settled = Some(said["timestamp"].as_str().unwrap().parse().unwrap());
            }
            line.clear();
        }
    }
}
