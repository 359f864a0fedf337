//! Benchmarks of the e2e crate, which run released programs.

use anyhow::{Context, Result, bail, ensure};

use crate::agent;

/// Runs a benchmark. `rounds` is the default if the options do not contain `--rounds`.
pub(super) fn run(benchmark: &str, mut rounds: usize, mut options: impl Iterator<Item = String>) -> Result<()> {
    while let Some(option) = options.next() {
        match (option.as_str(), options.next()) {
            ("--rounds", Some(number)) => rounds = number.parse().context("--rounds must be a number")?,
            (other, _) => bail!("unknown option {other} of bench {benchmark}; the only option is --rounds N"),
        }
    }
    ensure!(rounds > 0, "--rounds must be at least 1");
    if benchmark == "manager" {
        agent::build_manager()?
    } else {
        agent::build()?
    };
    let keelway = agent::keelway()?;
    agent::run(
        super::built(benchmark)?
            .env("KEELWAY_TEST_PROGRAM", keelway)
            .env("KEELWAY_BENCH_ROUNDS", rounds.to_string())
            .env("KEELWAY_BENCH_PAGE", agent::workspace()?.join("docs/performance.md")),
    )
}
