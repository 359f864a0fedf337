//! Commands that tests run.

use std::{
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::process;

/// The output and exit status of a command that ended.
#[derive(Debug)]
pub struct FinishedCommand {
    /// The command line, for messages.
    pub command: String,
    /// The standard output, unchanged.
    pub stdout: Vec<u8>,
    /// The standard error, as text.
    pub stderr: String,
    /// The time from start to end.
    pub took: Duration,
    status: ExitStatus,
}

/// A running command. It is killed on drop.
pub struct RunningCommand {
    command: String,
    child: Child,
    started: Instant,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl FinishedCommand {
    /// Returns the exit code. If a signal ended the command, returns 128 plus the number of the signal.
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| Some(128 + self.status.signal()?)).unwrap()
    }

    /// Fails the test unless the command succeeded.
    #[must_use]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code(), 0, "{}: {}", self.command, self.stderr);
        self
    }

    /// Returns the standard output as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// Returns the standard output, parsed as JSON.
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
        // A command that rejects its arguments does not read its input, so this write can fail.
        thread::spawn(move || drop(to.write_all(&bytes)));
        let (stdout, stderr) = (Some(read(child.stdout.take())), Some(read(child.stderr.take())));
        Self { command: line, child, started, stdout, stderr }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the command ends. Fails the test if the deadline passes first.
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
