//! `cargo xtask bench vpn`: the measurements of the VPN, whose table goes into `docs/performance.md`.

use std::io;
use std::process::Command;

/// Runs the benchmark of the crate `keelway-vpn` with `args` (`--rounds N`, `--seconds S`), as root.
pub fn run(args: &[String]) -> io::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["bench", "-p", "keelway-vpn", "--bench", "vpn", "--", "--write"])
        .args(args)
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("the benchmark ended with {status}")))
}
