//! What a container's program would do, were it run.

/// The name of the test program, whose words are understood; every other program runs until it is told to end.
const TEST_PROGRAM: &str = "keelway-test";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FakeBehaviour {
    /// Runs, and ends with 0 when asked to.
    #[default]
    Serve,
    /// Runs, and ends only when killed.
    Stubborn,
    /// Ends at once.
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

/// What a command prints in a container, and its exit code.
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
