//! The measurements of control planes.

use anyhow::{Context, Result, bail, ensure};

use crate::agent;

/// Rounds where nobody says how many.
const ROUNDS: usize = 7;

/// Runs the benchmark of the tests' crate on what is released and shipped.
pub(crate) fn run(mut options: impl Iterator<Item = String>) -> Result<()> {
    let mut rounds = ROUNDS;
    while let Some(option) = options.next() {
        match (option.as_str(), options.next()) {
            ("--rounds", Some(number)) => rounds = number.parse().context("--rounds wants a number")?,
            (other, _) => bail!("bench start has no option {other}; there is --rounds N"),
        }
    }
    ensure!(rounds > 0, "a benchmark has one round at least");
    agent::build()?;
    let keelway = agent::keelway()?;
    agent::run(
        agent::cargo()
            .args(["bench", "--package", "keelway-e2e", "--bench", "start"])
            .env("KEELWAY_TEST_PROGRAM", keelway)
            .env("KEELWAY_BENCH_ROUNDS", rounds.to_string())
            .env("KEELWAY_BENCH_PAGE", agent::workspace()?.join("docs/performance.md")),
    )
}
