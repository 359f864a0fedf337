//! The results of a run, as text.

use std::{fmt::Write as _, fs, path::Path, time::Instant};

use anyhow::{Context, Result};

use super::TestOutcome;

/// Returns the line that is printed when a program has ended.
pub(crate) fn line(outcome: &TestOutcome) -> String {
    let word = if outcome.ended.status.success() { "ok" } else { "failed" };
    let wall = outcome.ended.wall.as_secs_f64();
    let cores = outcome.ended.cpu / wall.max(0.01);
    format!("{word:6} {:30} {:4} passed {wall:7.1} s {cores:5.2} cores", outcome.name, outcome.report.passed)
}

/// Writes the start, the end and the processor time of each program, in seconds since the start of the run.
pub(crate) fn times(outcomes: &[TestOutcome], began: Instant, path: &Path) -> Result<()> {
    let mut text = "name\tstart\tend\tcpu\n".to_owned();
    for TestOutcome { name, ended, .. } in outcomes {
        let start = ended.began.saturating_duration_since(began).as_secs_f64();
        let end = start + ended.wall.as_secs_f64();
        let _ = writeln!(text, "{name}\t{start:.1}\t{end:.1}\t{:.1}", ended.cpu);
    }
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Writes the tests that failed and then passed, with both logs.
pub(crate) fn flaky(outcomes: &[TestOutcome], path: &Path) -> Result<()> {
    let mut text = "program\ttest\tfailed\tpassed\n".to_owned();
    for outcome in outcomes {
        for (test, log) in &outcome.flaky {
            let _ = writeln!(text, "{}\t{test}\t{}\t{}", outcome.name, outcome.ended.log.display(), log.display());
        }
    }
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
