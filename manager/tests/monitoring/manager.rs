//! A manager with one machine that does not respond, and with an empty environment.

use std::{
    fs,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// The time within which a log line or a metric must appear.
const SAID: Duration = Duration::from_secs(30);

const BETWEEN_QUESTIONS: Duration = Duration::from_millis(50);

const MACHINE: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec: {role: Private, endpoint: {unix: {path: /nowhere/containerd.sock}}, addresses: {private: [10.0.0.11]}}
";
const CLUSTER: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1}
spec: {version: 1.37.0}
";

pub(crate) struct Manager {
    child: Child,
    lines: Receiver<String>,
    address: SocketAddr,
    _folder: TempDir,
}

impl Manager {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a manager with these environment variables and no others.
    pub(crate) fn start_with(variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [("store/hypervisors/hv-1.yaml", MACHINE), ("store/clusters/default/c1.yaml", CLUSTER)] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_keelway-manager"));
        command.arg("run").arg(format!("--store=dir:{}", folder.path().join("store").display()));
        command.arg("--listen").arg(folder.path().join("manager.sock")).arg("--metrics-listen=127.0.0.1:0");
        let mut child = command
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = lines(&mut child);
        let mut manager = Self { child, lines, address: ([127, 0, 0, 1], 0).into(), _folder: folder };
        let line = manager.says(|line| line["fields"]["address"].is_string());
        manager.address = line["fields"]["address"].as_str().unwrap().parse().unwrap();
        manager
    }

    /// Waits for a log line that matches.
    pub(crate) fn says(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + SAID;
        let mut said = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else { panic!("it said only:\n{said}") };
            let found: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            if is_it(&found) {
                return found;
            }
            said = said + &line + "\n";
        }
    }

    /// Returns the whole HTTP response.
    pub(crate) fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until the metrics contain these samples, and returns the metrics.
    pub(crate) fn tells(&self, samples: &[&str]) -> String {
        eventually(|| {
            let scrape = self.metrics();
            let untold: Vec<_> = samples.iter().filter(|sample| !scrape.lines().any(|line| line == **sample)).collect();
            if untold.is_empty() { Ok(scrape) } else { Err(format!("it does not tell {untold:?}:\n{scrape}")) }
        })
    }

    /// Waits until the manager reports that it is ready.
    pub(crate) fn is_ready(&self) {
        eventually(|| {
            let answer = self.get("/readyz", "");
            if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
        });
    }

    /// Returns the metrics in Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        let answer = self.get("/metrics", "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Calls `ask` until it succeeds, because a metric changes after the log line for the same event.
#[expect(clippy::disallowed_methods, reason = "only the next query shows a change of a figure")]
fn eventually<T>(ask: impl Fn() -> Result<T, String>) -> T {
    let deadline = Instant::now() + SAID;
    loop {
        match ask() {
            Ok(told) => return told,
            Err(why) => assert!(Instant::now() < deadline, "{why}"),
        }
        thread::sleep(BETWEEN_QUESTIONS);
    }
}

fn lines(child: &mut Child) -> Receiver<String> {
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
