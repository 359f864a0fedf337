//! Generates the parts of the documentation that the programs print, and the CustomResourceDefinitions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The generated files of `docs/`, by the name that `keelway reference` expects.
const FILES: [&str; 4] = ["arguments", "fields", "ports", "reasons"];

pub(crate) fn write() -> Result<()> {
    for name in FILES {
        let path = root().join("docs").join(name).with_extension("md");
        fs::write(&path, keelway(&["reference", name])?)
            .with_context(|| format!("could not write {}", path.display()))?;
    }
    let crds = root().join("manifests/crds");
    run("keelway-manager", "keelway-manager", &["crds", "--directory", &crds.display().to_string()]).map(|_| ())
}

pub(crate) fn man(directory: &str) -> Result<()> {
    keelway(&["reference", "man", directory]).map(|_| ())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Builds `keelway` and returns its output.
fn keelway(arguments: &[&str]) -> Result<Vec<u8>> {
    run("keelway-cli", "keelway", arguments)
}

fn run(package: &str, program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", package, "--bin", program, "--"]).args(arguments);
    let output = command.output().with_context(|| format!("could not run {program}"))?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
