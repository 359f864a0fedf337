//! `cargo xtask bench`: measurements, whose tables go into `docs/performance.md`.

mod start;
mod vpn;

use anyhow::{Result, bail};

/// Runs the benchmark that is named first, with the options after it.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    match arguments.next().as_deref() {
        Some("start") => start::run(arguments),
        Some("vpn") => vpn::run(arguments),
        Some(other) => bail!("there is no benchmark {other}; there are start and vpn"),
        None => bail!("name a benchmark: start or vpn"),
    }
}
