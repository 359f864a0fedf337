//! The simulated behaviour of a container's program.

/// The name of the test program, whose arguments select a behaviour. Every other program runs until it is stopped.
const TEST_PROGRAM: &str = "keelway-test";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FakeBehaviour {
    /// Runs, and ends with 0 on the stop signal.
    #[default]
    Serve,
    /// Runs until it is killed.
    Stubborn,
    /// Ends at once with this exit code.
    Exit(i32),
}

impl FakeBehaviour {
    pub(super) fn of(command_line: &[String]) -> Self {
        match words(command_line).as_deref() {
            Some(["stubborn", ..]) => Self::Stubborn,
            Some(["exit", code, ..] | ["print", _, code, ..]) => Self::Exit(code.parse().unwrap_or(0)),
            _ => Self::Serve,
        }
    }
}

/// Returns the output and the exit code of a command in a container.
pub(super) fn output(command_line: &[String]) -> (Vec<u8>, i32) {
    match words(command_line).as_deref() {
        Some(["print", text, code, ..]) => (format!("{text}\n").into_bytes(), code.parse().unwrap_or(0)),
        Some(["exit", code, ..]) => (Vec::new(), code.parse().unwrap_or(0)),
        _ => (Vec::new(), 0),
    }
}

fn words(command_line: &[String]) -> Option<Vec<&str>> {
    let (program, words) = command_line.split_first()?;
    let is_ours = program.rsplit('/').next() == Some(TEST_PROGRAM);
    is_ours.then(|| words.iter().map(String::as_str).collect())
}
