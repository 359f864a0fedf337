use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The path of the test program in an image.
///
/// The first argument selects the behaviour:
///
/// - `serve`: ends with 0 on SIGTERM.
/// - `stubborn`: ignores SIGTERM.
/// - `exit CODE`
/// - `print TEXT CODE`
/// - `copy CODE`: copies stdin to stdout, and writes its length to stderr.
/// - `size COLUMNS`: waits for a terminal of that size, then for a line.
///
/// The program also works as a pause image.
pub const PROGRAM: &str = "/keelway-test";

/// Compiles the test program into a directory as a static binary, with the machine's C compiler.
pub fn build_program(directory: &Path) -> io::Result<PathBuf> {
    let source = directory.join("program.c");
    let program = directory.join("program");
    fs::write(&source, include_str!("program.c"))?;
    let compiled = Command::new("gcc")
        .args(["-static", "-O1", "-s", "-o"])
        .arg(&program)
        .arg(&source)
        .stdin(Stdio::null())
        .output()?;
    if compiled.status.success() {
        Ok(program)
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&compiled.stderr).into_owned()))
    }
}
