//! What is being done and for how long, on stderr: one line that changes on a terminal, else a line per step.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often a changing line changes.
const TICK: Duration = Duration::from_secs(1);
/// How often a long step says so where lines stay.
const REMINDER: Duration = Duration::from_secs(60);

/// Where progress goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgressOutput {
    changing: bool,
}

/// One step under way.
#[derive(Debug)]
pub(crate) struct ProgressStep {
    progress: ProgressOutput,
    name: String,
    started: Instant,
    shown: Instant,
}

impl ProgressOutput {
    /// `plain` asks for lines that stay on a terminal too, for one that is shared with another program.
    pub(crate) fn new(plain: bool) -> Self {
        let changing = !plain && io::stderr().is_terminal();
        Self { changing }
    }

    /// A line that stays.
    pub(crate) fn print(self, line: &str) {
        let erase = if self.changing { "\r\x1b[2K" } else { "" };
        write(&format!("{erase}images: {line}\n"));
    }

    /// Starts a step.
    pub(crate) fn step(self, name: impl Into<String>, now: Instant) -> ProgressStep {
        let name = name.into();
        if self.changing {
            write(&format!("\r\x1b[2Kimages: {name}"));
        } else {
            self.print(&format!("{name} .."));
        }
        ProgressStep { progress: self, name, started: now, shown: now }
    }
}

impl ProgressStep {
    /// Waits for a message, showing how the step goes on meanwhile.
    pub(crate) fn until<T>(&mut self, receiver: &Receiver<T>, detail: impl Fn() -> String) -> Result<T, RecvError> {
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Timeout) => self.show(&detail),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            }
        }
    }

    /// Ends the step.
    pub(crate) fn done(self) {
        let elapsed = in_words(self.started.elapsed());
        self.progress.print(&format!("{}: done in {elapsed}", self.name));
    }

    /// Shows how far the step is, where that was not shown a moment ago.
    pub(crate) fn show(&mut self, detail: impl Fn() -> String) {
        let pause = if self.progress.changing { TICK } else { REMINDER };
        if self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let line = format!("{}: {}, {}", self.name, detail(), in_words(self.started.elapsed()));
        if self.progress.changing {
            write(&format!("\r\x1b[2Kimages: {line}"));
        } else {
            self.progress.print(&line);
        }
    }
}

/// Progress that cannot be shown is no reason to stop.
fn write(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

fn in_words(elapsed: Duration) -> String {
    match elapsed.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}
