//! Runs promtool, from Debian's package prometheus.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

/// Fails unless promtool accepts the input.
pub(crate) fn takes(words: &[&str], input: &str) {
    let mut promtool = Command::new("promtool")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is not there: make setup");
    promtool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {words:?}:\n{said}");
}
