//! The benchmark of fleets, with programs as they are shipped.

use anyhow::{Context, Result, bail, ensure};

use crate::agent;

/// Runs the benchmark with these options.
pub(super) fn run(mut options: impl Iterator<Item = String>) -> Result<()> {
    let (mut rounds, mut sizes) = ("1".to_owned(), Vec::new());
    while let Some(option) = options.next() {
        let value = options.next().with_context(|| format!("{option} has no value"))?;
        match option.as_str() {
            "--rounds" => rounds = value,
            "--clusters" => sizes.push(("KEELWAY_BENCH_CLUSTERS", value)),
            "--objects" => sizes.push(("KEELWAY_BENCH_OBJECTS", value)),
            other => bail!(
                "unknown option {other} of bench fleet; the options are --rounds N, --clusters N[,N..] and --objects N[,N..]"
            ),
        }
    }
    for (option, value) in [("--rounds", &rounds)].into_iter().chain(sizes.iter().map(|(name, value)| (*name, value))) {
        let are_numbers = value.split(',').all(|number| number.parse::<usize>().is_ok_and(|number| number > 0));
        ensure!(are_numbers, "{option}: {value:?} must be numbers of at least 1");
    }
    agent::build_fleet()?;
    let keelway = agent::keelway()?;
    let page = agent::workspace()?.join("docs/performance.md");
    let mut bench = super::built("fleet")?;
    bench.env("KEELWAY_TEST_PROGRAM", keelway).env("KEELWAY_BENCH_ROUNDS", rounds);
    // A table of other sizes is printed only.
    if sizes.is_empty() {
        bench.env("KEELWAY_BENCH_PAGE", page);
    }
    bench.envs(sizes);
    agent::run(&mut bench)
}
