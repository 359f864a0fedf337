//! A command that ended.

use std::{
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::process;

/// What it said, and how it ended.
#[derive(Debug)]
pub struct FinishedCommand {
    /// The command line, for messages.
    pub command: String,
    /// Byte for byte.
    pub stdout: Vec<u8>,
    /// For people.
    pub stderr: String,
    /// From its start to its end.
    pub took: Duration,
    status: ExitStatus,
}

/// A command that runs. It is killed where nobody waits for its end.
pub struct RunningCommand {
    command: String,
    child: Child,
    started: Instant,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl FinishedCommand {
    /// The exit code; 128 and the signal's number where a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| Some(128 + self.status.signal()?)).unwrap()
    }

    /// Fails the test unless the command was successful.
    #[must_use]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code(), 0, "{}: {}", self.command, self.stderr);
        self
    }

    /// Its standard output.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// Its standard output, read as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap()
    }
}

impl RunningCommand {
    /// Starts a command with this input.
    pub fn start(command: &mut Command, stdin: &[u8]) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let started = Instant::now();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut to, bytes) = (child.stdin.take().unwrap(), stdin.to_vec());
        // A command that refuses its arguments reads nothing.
        thread::spawn(move || drop(to.write_all(&bytes)));
        let (stdout, stderr) = (Some(read(child.stdout.take())), Some(read(child.stderr.take())));
        Self { command: line, child, started, stdout, stderr }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub fn end(mut self, deadline: Duration) -> FinishedCommand {
        assert!(process::ends_within(self.pid(), deadline), "{} runs for more than {deadline:?}", self.command);
        let status = self.child.wait().unwrap();
        let [stdout, stderr] = [self.stdout.take(), self.stderr.take()].map(|reader| reader.unwrap().join().unwrap());
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        FinishedCommand { command: self.command.clone(), stdout, stderr, took: self.started.elapsed(), status }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command, stdin: &[u8], deadline: Duration) -> FinishedCommand {
    RunningCommand::start(command, stdin).end(deadline)
}

fn read<R: Read + Send + 'static>(stream: Option<R>) -> JoinHandle<Vec<u8>> {
    let mut stream = stream.unwrap();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    })
}
