//! The parts of the documentation that `keelway` itself tells.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Files of `docs/`, each by what `keelway reference` calls it.
const FILES: [&str; 4] = ["arguments", "fields", "ports", "reasons"];

pub(crate) fn write() -> Result<()> {
    for name in FILES {
        let path = root().join("docs").join(name).with_extension("md");
        fs::write(&path, keelway(&["reference", name])?)
            .with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok(())
}

pub(crate) fn man(directory: &str) -> Result<()> {
    keelway(&["reference", "man", directory]).map(|_| ())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What the program says, built for it.
fn keelway(arguments: &[&str]) -> Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "keelway-cli", "--bin", "keelway", "--"]).args(arguments);
    let output = command.output().context("could not run keelway")?;
    ensure!(output.status.success(), "keelway {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
