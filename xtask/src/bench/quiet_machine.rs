//! Waits until nothing else uses the machine: a build that has just ended is in the load average for minutes.

use std::{
    fs,
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// Benchmarks write their tables only if the load average at their start is below this.
const QUIET: f64 = 1.0;
/// The longest time to wait. Afterwards, the benchmark runs, and prints its table only.
const LONGEST: Duration = Duration::from_secs(300);
/// How often the load average is read. The kernel changes it every five seconds.
const INTERVAL: Duration = Duration::from_secs(5);

/// Waits until the load average is low, or for the longest time.
pub(super) fn wait() -> Result<()> {
    let started = Instant::now();
    let mut load = read()?;
    if load >= QUIET {
        writeln!(io::stderr(), "waiting until the load average is below {QUIET}: it is {load}")?;
    }
    while load >= QUIET && started.elapsed() < LONGEST {
        #[expect(clippy::disallowed_methods, reason = "the load average has no event")]
        thread::sleep(INTERVAL);
        load = read()?;
    }
    Ok(())
}

fn read() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg").context("cannot read the load average")?;
    text.split_whitespace().next().and_then(|load| load.parse().ok()).context("/proc/loadavg has no load average")
}
