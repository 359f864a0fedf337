//! `cargo xtask bench`: measurements, whose tables go into `docs/performance.md`.

mod shipped;
mod vpn;

use anyhow::{Result, bail};

/// Rounds where nobody says how many.
const ROUNDS: usize = 7;

/// Runs the benchmark that is named first, with the options after it.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    match arguments.next().as_deref() {
        // Of control planes, of workers, of both, and of hypervisors.
        Some(benchmark @ ("start" | "join" | "failover" | "agent")) => shipped::run(benchmark, ROUNDS, arguments),
        // Each of its figures is of a thousand clusters.
        Some("manager") => shipped::run("manager", 1, arguments),
        Some("vpn") => vpn::run(arguments),
        Some(other) => bail!("there is no benchmark {other}; there are start, join, failover, agent, manager and vpn"),
        None => bail!("name a benchmark: start, join, failover, agent, manager or vpn"),
    }
}
