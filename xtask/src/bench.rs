//! `cargo xtask bench`: measurements. Their tables are part of `docs/performance.md`.

mod fleet;
mod quiet_machine;
mod shipped;
mod vpn;

use std::process::Command;

use anyhow::{Result, bail};

use crate::agent;

/// The default number of rounds.
const ROUNDS: usize = 7;

/// Runs the benchmark that the first argument names. The other arguments are its options.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    match arguments.next().as_deref() {
        // These measure control planes, workers, both, hypervisors, and etcd members.
        Some(benchmark @ ("start" | "join" | "failover" | "agent" | "stores")) => {
            shipped::run(benchmark, ROUNDS, arguments)
        }
        // The default is one round, because each figure is measured with a thousand clusters.
        Some("manager") => shipped::run("manager", 1, arguments),
        Some("vpn") => vpn::run(arguments),
        Some("fleet") => fleet::run(arguments),
        Some(other) => {
            bail!("unknown benchmark {other}; must be start, join, failover, agent, stores, manager, vpn or fleet")
        }
        None => bail!("no benchmark was given; must be start, join, failover, agent, stores, manager, vpn or fleet"),
    }
}

/// Returns the command that runs a benchmark of the e2e crate, once it is built and the machine is quiet.
fn built(benchmark: &str) -> Result<Command> {
    let arguments = ["bench", "--package", "keelway-e2e", "--bench", benchmark];
    agent::run(agent::cargo().args(arguments).arg("--no-run"))?;
    quiet_machine::wait()?;
    let mut bench = agent::cargo();
    bench.args(arguments);
    Ok(bench)
}
