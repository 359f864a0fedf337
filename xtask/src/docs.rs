//! Generates the parts of the documentation that the programs print, and the CustomResourceDefinitions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::agent::cargo;

/// The generated files of `docs/`, by the name that `keelway reference` expects.
const FILES: [&str; 4] = ["arguments", "fields", "ports", "reasons"];

pub(crate) fn write() -> Result<()> {
    for name in FILES {
        let path = root().join("docs").join(name).with_extension("md");
        fs::write(&path, keelway(&["reference", name])?)
            .with_context(|| format!("could not write {}", path.display()))?;
    }
    let crds = root().join("manifests/crds");
    run("keelway-manager", &["crds", "--directory", &crds.display().to_string()]).map(|_| ())
}

pub(crate) fn man(directory: &str) -> Result<()> {
    keelway(&["reference", "man", directory]).map(|_| ())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Builds `keelway` and returns its output.
fn keelway(arguments: &[&str]) -> Result<Vec<u8>> {
    run("keelway", arguments)
}

/// Builds the program as `cargo build --workspace` does: a package alone has other features, with which everything would be compiled again.
fn run(program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let built = cargo().args(["build", "--quiet", "--workspace", "--bin", program]).status();
    ensure!(built.with_context(|| format!("could not build {program}"))?.success(), "could not build {program}");
    let mut command = Command::new(root().join("target/debug").join(program));
    let output = command.args(arguments).output().with_context(|| format!("could not run {program}"))?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
