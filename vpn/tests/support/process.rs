//! Programs, and waiting for their effects.

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

/// The interval between two checks whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Runs a command that must succeed, and returns its output.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `done` returns true. Fails after `patience`.
pub fn wait_until(what: &str, patience: Duration, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    // A pause between two checks: most conditions have no event.
    let pause = UdpSocket::bind("127.0.0.1:0").unwrap();
    pause.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        let _ = pause.recv(&mut [0]);
    }
}

/// A child process that ends when it is dropped.
pub struct Process {
    child: Child,
    log: NamedTempFile,
}

impl Process {
    pub fn spawn(mut command: Command) -> Self {
        let log = NamedTempFile::new().unwrap();
        let file = log.reopen().unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: command.spawn().unwrap(), log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Returns the processor time that all threads have used so far.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let nanoseconds = tasks.flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanoseconds.sum())
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(id.unwrap(), signal).unwrap();
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM, and waits for the end as long as a gateway may take. Then kills the process.
    pub fn stop(&mut self) {
        let Some(id) = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw) else {
            return;
        };
        if self.is_running() {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(10);
            while self.is_running() && Instant::now() < deadline {
                std::thread::park_timeout(LOOK);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}
