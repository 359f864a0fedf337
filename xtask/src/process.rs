//! Running other programs.

use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// How much of a failed program's words an error repeats.
const TAIL: usize = 30;

/// Runs a program to its end and gives what it wrote to stdout.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().with_context(|| format!("run {program}"))?;
    if !status.success() {
        let words = String::from_utf8_lossy(&stderr).into_owned();
        bail!("{program}: {status}\n{}", tail(words.lines()));
    }
    String::from_utf8(stdout).with_context(|| format!("read what {program} wrote"))
}

/// The last lines, for an error.
pub(crate) fn tail<'a>(lines: impl DoubleEndedIterator<Item = &'a str>) -> String {
    let mut last: Vec<&str> = lines.rev().take(TAIL).collect();
    last.reverse();
    last.join("\n")
}

/// Copies what is executed soon, its loader among it, by another process: a child that another thread starts here would hold the
/// copy open for writing until it has a program of its own, and what is open for writing cannot be executed.
#[cfg(test)]
pub(crate) fn copy(from: &std::path::Path, to: &std::path::Path) {
    output(Command::new("cp").arg(from).arg(to)).unwrap();
}

/// A process that is ended with its guard.
#[cfg(test)]
pub(crate) struct RunningProcess(pub(crate) std::process::Child);

#[cfg(test)]
impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
