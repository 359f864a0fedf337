//! Runs other programs.

use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// The number of lines of a failed program's output that an error contains.
const TAIL: usize = 30;

/// Runs a program to its end and returns its stdout.
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

/// Returns the last lines, for an error.
pub(crate) fn tail<'a>(lines: impl DoubleEndedIterator<Item = &'a str>) -> String {
    let mut last: Vec<&str> = lines.rev().take(TAIL).collect();
    last.reverse();
    last.join("\n")
}

/// Copies a file that a test executes soon, or its loader, in another process. If this process wrote the copy, a child that another thread forks
/// would keep the copy open for writing until it executes its own program, and the kernel refuses to execute a file that is open for writing.
#[cfg(test)]
pub(crate) fn copy(from: &std::path::Path, to: &std::path::Path) {
    output(Command::new("cp").arg(from).arg(to)).unwrap();
}

/// A process that is killed on drop.
pub(crate) struct RunningProcess(pub(crate) Child);

impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
