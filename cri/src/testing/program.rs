use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where the test program is in an image that is made with it.
///
/// Its first argument says what it does: `serve` (ends with 0 on SIGTERM), `stubborn` (ignores SIGTERM), `exit CODE`,
/// `print TEXT CODE`, `copy CODE`
/// (stdin to stdout, its length to stderr), `size COLUMNS` (waits for a terminal of that size, then for a line). It does for a pause image, too.
pub const PROGRAM: &str = "/keelway-test";

/// Builds the test program into a directory, static, with the machine's C compiler.
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
