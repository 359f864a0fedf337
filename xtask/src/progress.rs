//! Progress on stderr: on a terminal, one line that is updated; otherwise, one line per step.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The interval at which a line is updated.
const TICK: Duration = Duration::from_secs(1);
/// The interval at which a long step is reported again if lines are not updated.
const REMINDER: Duration = Duration::from_secs(60);

/// The output for progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgressOutput {
    changing: bool,
}

/// A step in progress.
#[derive(Debug)]
pub(crate) struct ProgressStep {
    progress: ProgressOutput,
    name: String,
    started: Instant,
    shown: Instant,
}

impl ProgressOutput {
    /// `plain` selects separate lines on a terminal too, for a terminal that another program also writes to.
    pub(crate) fn new(plain: bool) -> Self {
        let changing = !plain && io::stderr().is_terminal();
        Self { changing }
    }

    /// Prints a line that is not overwritten.
    pub(crate) fn print(self, line: &str) {
        let erase = if self.changing { "\r\x1b[2K" } else { "" };
        write(&format!("{erase}images: {line}\n"));
    }

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
    /// Waits for a message and shows the progress of the step meanwhile.
    pub(crate) fn until<T>(&mut self, receiver: &Receiver<T>, detail: impl Fn() -> String) -> Result<T, RecvError> {
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Timeout) => self.show(&detail),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            }
        }
    }

    pub(crate) fn done(self) {
        let elapsed = in_words(self.started.elapsed());
        self.progress.print(&format!("{}: done in {elapsed}", self.name));
    }

    /// Shows the progress of the step, unless it was shown less than one interval ago.
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

/// Errors are ignored: a failure to show progress must not stop the work.
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
