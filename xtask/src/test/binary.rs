//! The test binaries of the workspace, as Cargo builds them.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::agent::cargo;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// The package without `keelway-`, and the target: `e2e live`, `api lib`.
    pub(crate) name: String,
    executable: PathBuf,
    /// The directory of the package, in which Cargo runs the tests.
    directory: PathBuf,
}

impl TestBinary {
    /// Returns the command that runs all tests of the binary, or only the named ones.
    pub(crate) fn command(&self, tests: &[String]) -> Command {
        let mut command = Command::new(&self.executable);
        // If `CARGO` is set, tests build the programs that they run. That build would wait for clippy here.
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory).env_remove("CARGO").args(tests);
        if !tests.is_empty() {
            command.arg("--exact");
        }
        command
    }
}

/// The VPN's tests on simulated time. The feature stops the clock of its sessions, which all other tests need.
const SIMULATED: [&str; 4] = ["--features", "keelway-vpn/simulated-clock", "--test", "simulated"];

/// Builds all programs and tests of the workspace. The programs that tests run are those of the last build, whose clocks do not stop.
pub(crate) fn build() -> Result<Vec<TestBinary>> {
    let mut binaries = built(&SIMULATED)?;
    binaries.extend(built(&["--bins", "--tests"])?);
    Ok(binaries)
}

/// Builds the selected targets of the workspace. If all packages are selected, both builds use the same dependencies.
fn built(targets: &[&str]) -> Result<Vec<TestBinary>> {
    let mut child = cargo()
        .args(["build", "--workspace", "--message-format", "json-render-diagnostics"])
        .args(targets)
        .stdout(Stdio::piped())
        .spawn()
        .context("run cargo")?;
    let stdout = BufReader::new(child.stdout.take().context("read what cargo writes")?);
    let lines: Vec<String> = stdout.lines().collect::<Result<_, _>>().context("read what cargo writes")?;
    let status = child.wait().context("wait for cargo")?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(lines.iter().filter_map(|line| test_binary(&serde_json::from_str(line).ok()?)).collect())
}

/// Returns the test binary that this message of Cargo describes, if it describes one.
fn test_binary(message: &Value) -> Option<TestBinary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = directory.file_name()?.to_str()?;
    let target = &message["target"];
    let name = match target["kind"][0].as_str()? {
        "lib" => "lib",
        _ => target["name"].as_str()?,
    };
    Some(TestBinary { name: format!("{package} {name}"), executable, directory })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::test_binary;

    #[test]
    fn a_test_is_named_after_its_package_and_target() {
        let mut message = json!({
            "reason": "compiler-artifact",
            "manifest_path": "/src/e2e/Cargo.toml",
            "target": { "kind": ["test"], "name": "live" },
            "profile": { "test": true },
            "executable": "/src/target/debug/deps/live-1",
        });
        assert_eq!(test_binary(&message).unwrap().name, "e2e live");
        message["target"] = json!({ "kind": ["lib"], "name": "keelway_e2e" });
        assert_eq!(test_binary(&message).unwrap().name, "e2e lib");
        message["profile"]["test"] = false.into();
        assert_eq!(test_binary(&message), None);
    }
}
