//! Measurements of the VPN.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs the benchmark of the crate `keelway-vpn` with these options.
pub(crate) fn run(options: impl Iterator<Item = String>) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["bench", "-p", "keelway-vpn", "--bench", "vpn", "--", "--write"])
        .args(options)
        .status()
        .context("run cargo")?;
    ensure!(status.success(), "the benchmark failed: {status}");
    Ok(())
}
