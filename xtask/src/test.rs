//! `cargo xtask test`: runs all tests, as many at a time as the cores can.

mod binary;
mod demand;
mod report;
mod task;
mod written;

use std::{
    collections::VecDeque,
    fs,
    io::{self, Write as _},
    iter,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::agent::{cargo, workspace};
use binary::TestBinary;
use demand::{Demand, demand};
use report::TestReport;
use task::ProgramExit;

/// A job: the tests of one program, or a check that compiles.
#[derive(Debug, Clone)]
enum TestJob {
    Tests(TestBinary),
    /// Arguments of Cargo.
    Cargo(&'static str, &'static [&'static str]),
}

/// This job compiles what nothing else needs, so it uses the time in which live tests wait.
const CLIPPY: TestJob = TestJob::Cargo(
    "clippy",
    &["clippy", "--workspace", "--all-targets", "--features", "keelway-vpn/simulated-clock", "--", "-D", "warnings"],
);

impl TestJob {
    fn name(&self) -> &str {
        match self {
            Self::Tests(binary) => &binary.name,
            Self::Cargo(name, _) => name,
        }
    }

    fn demand(&self) -> (usize, Demand) {
        match self {
            Self::Tests(binary) => demand(&binary.name),
            Self::Cargo(..) => (0, Demand { load: 60, live: false }),
        }
    }

    fn command(&self) -> Command {
        match self {
            Self::Tests(binary) => binary.command(&[]),
            Self::Cargo(_, arguments) => {
                let cargo = cargo();
                let mut nice = Command::new("nice");
                nice.current_dir(cargo.get_current_dir().unwrap_or(Path::new(".")));
                nice.env("CARGO_BUILD_JOBS", "1").args(["-n", "10"]).arg(cargo.get_program()).args(*arguments);
                nice
            }
        }
    }
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct TestOutcome {
    name: String,
    ended: ProgramExit,
    report: TestReport,
    /// Live tests that failed first and passed when they ran again.
    flaky: Vec<(String, PathBuf)>,
}

impl TestOutcome {
    fn new(work: &TestJob, ended: ProgramExit) -> Result<Self> {
        let log = fs::read(&ended.log).with_context(|| format!("read {}", ended.log.display()))?;
        let report = TestReport::parse(&String::from_utf8_lossy(&log));
        Ok(Self { name: work.name().to_owned(), ended, report, flaky: Vec::new() })
    }

    fn is_success(&self) -> bool {
        self.ended.status.success() || (!self.report.failed.is_empty() && self.report.failed.len() == self.flaky.len())
    }
}

/// Less free space than this may be the cause of a failure.
const LEAST_FREE: u64 = 2 << 30;

/// Builds and runs all tests, or those whose name contains one of these words.
pub(crate) fn run(filters: &[String]) -> Result<()> {
    let began = Instant::now();
    let target = workspace()?.join("target");
    let logs = target.join("test-logs");
    fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    let works = works(filters)?;
    ensure!(!works.is_empty(), "no test matches {}", filters.join(", "));
    say(&format!("built {} programs with tests in {} s", works.len(), began.elapsed().as_secs()))?;

    let mut outcomes = side_by_side(&works, &logs)?;
    for outcome in &mut outcomes {
        let work = works.iter().find(|work| work.name() == outcome.name);
        if let Some(TestJob::Tests(binary)) = work.filter(|work| work.demand().1.live) {
            run_again(binary, outcome, &logs)?;
        }
    }
    written::times(&outcomes, began, &target.join("test-times.tsv"))?;
    written::flaky(&outcomes, &target.join("flaky.tsv"))?;
    conclude(&outcomes, began)
}

fn works(filters: &[String]) -> Result<Vec<TestJob>> {
    let tests = binary::build()?.into_iter().map(TestJob::Tests);
    let is_wanted =
        |work: &TestJob| filters.is_empty() || filters.iter().any(|filter| work.name().contains(filter.as_str()));
    let mut works: Vec<TestJob> = iter::once(CLIPPY).chain(tests).filter(is_wanted).collect();
    works.sort_by_key(|work| work.demand().0);
    Ok(works)
}

/// Starts the jobs that fit whenever a job has ended.
fn side_by_side(works: &[TestJob], logs: &Path) -> Result<Vec<TestOutcome>> {
    let cores = u32::try_from(thread::available_parallelism().context("count the cores")?.get())?;
    let mut waiting: VecDeque<&TestJob> = works.iter().collect();
    let mut running: Vec<&TestJob> = Vec::new();
    let mut outcomes = Vec::new();
    let (sender, ends) = mpsc::channel();
    thread::scope(|scope| {
        while !waiting.is_empty() || !running.is_empty() {
            while let Some(work) = next(&waiting, &running, cores * 100).and_then(|place| waiting.remove(place)) {
                running.push(work);
                let (sender, log) = (sender.clone(), log_of(logs, work.name()));
                scope.spawn(move || sender.send((work, task::run(&mut work.command(), &log))));
            }
            let (work, ended) = ends.recv().context("wait for tests")?;
            running.retain(|other| other.name() != work.name());
            let outcome = TestOutcome::new(work, ended?)?;
            say(&written::line(&outcome))?;
            outcomes.push(outcome);
        }
        Ok(outcomes)
    })
}

/// Returns the first job that fits beside the running ones. A job that never fits runs alone.
fn next(waiting: &VecDeque<&TestJob>, running: &[&TestJob], capacity: u32) -> Option<usize> {
    let used: u32 = running.iter().map(|work| work.demand().1.load).sum();
    waiting.iter().position(|work| running.is_empty() || used + work.demand().1.load <= capacity)
}

/// Runs the live tests that failed once more, with no other job beside them.
fn run_again(binary: &TestBinary, outcome: &mut TestOutcome, logs: &Path) -> Result<()> {
    for test in outcome.report.failed.clone() {
        let log = log_of(logs, &format!("{} {test} again", binary.name));
        let work = TestJob::Tests(binary.clone());
        let again = TestOutcome::new(&work, task::run(&mut binary.command(std::slice::from_ref(&test)), &log)?)?;
        say(&format!("again  {} {test}: {}", binary.name, again.ended.status))?;
        // The program also succeeds if no test has the name.
        if again.ended.status.success() && again.report.passed == 1 {
            outcome.flaky.push((test, log));
        }
    }
    Ok(())
}

fn log_of(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{}.log", name.replace([' ', ':', '/'], "-")))
}

/// Prints the logs of failed jobs, then the flaky tests, then the totals.
fn conclude(outcomes: &[TestOutcome], began: Instant) -> Result<()> {
    let failed: Vec<&TestOutcome> = outcomes.iter().filter(|outcome| !outcome.is_success()).collect();
    for outcome in &failed {
        let log = fs::read(&outcome.ended.log).with_context(|| format!("read {}", outcome.ended.log.display()))?;
        say(&format!("\n---- {}: {} ----\n{}", outcome.name, outcome.ended.status, String::from_utf8_lossy(&log)))?;
    }
    for (outcome, (test, _)) in outcomes.iter().flat_map(|outcome| outcome.flaky.iter().map(move |one| (outcome, one)))
    {
        say(&format!("FLAKY  {} {test}: {}", outcome.name, outcome.ended.log.display()))?;
    }
    let passed: u32 = outcomes.iter().map(|outcome| outcome.report.passed).sum();
    let flaky: usize = outcomes.iter().map(|outcome| outcome.flaky.len()).sum();
    // A program that fails without naming a test counts as one failed test.
    let count: usize = failed.iter().map(|outcome| (outcome.report.failed.len() - outcome.flaky.len()).max(1)).sum();
    for outcome in &failed {
        say(&format!("FAILED {}: {}", outcome.name, outcome.report.failed.join(", ")))?;
    }
    if !failed.is_empty() && free_bytes()? < LEAST_FREE {
        say(
            "less than 2 GiB are free beside the directory target, which may be the cause: remove what is old, for example with `cargo clean`",
        )?;
    }
    say(&format!("\ntotal: {} s", began.elapsed().as_secs()))?;
    say(&format!("{} passed, {count} failed", passed as usize + flaky))?;
    ensure!(failed.is_empty(), "{} of {} programs failed", failed.len(), outcomes.len());
    Ok(())
}

/// Returns how much of the file system with the build is free.
fn free_bytes() -> Result<u64> {
    let found =
        rustix::fs::statvfs(workspace()?.join("target")).context("read the free space of the directory target")?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn say(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").context("write to stdout")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{CLIPPY, next};

    #[test]
    fn a_program_that_is_too_large_runs_alone() {
        let waiting = VecDeque::from([&CLIPPY]);
        assert_eq!(next(&waiting, &[], 10), Some(0));
        assert_eq!(next(&waiting, &[&CLIPPY], 10), None);
        assert_eq!(next(&waiting, &[&CLIPPY], 200), Some(0));
    }
}
