//! Counters that passes update.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use keelway_api::jiff::Timestamp;
use keelway_reconciler::{ApplyOutcome, PassOutcome};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::{
    actions::{self, ActionKind},
    cluster_creation::Births,
    family::seconds,
};

type PassLabels = (&'static str, &'static str);

/// A pass over settled documents takes a few milliseconds. A pass that waits for slow machines takes many seconds.
const PASS_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// A cluster becomes available in seconds if its images are on the machines, else in minutes.
const BIRTH_SECONDS: [f64; 11] = [5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// Counters of passes and their results.
#[derive(Debug)]
pub struct Passes {
    results: Family<[PassLabels; 1], Counter>,
    durations: Histogram,
    last: Gauge<f64, AtomicU64>,
    actions: Family<[PassLabels; 2], Counter>,
    births: Histogram,
    unborn: Mutex<Births>,
    queue: Gauge,
    carried_out: AtomicU64,
}

impl Passes {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let passes = Self {
            results: Family::default(),
            durations: Histogram::new(PASS_SECONDS),
            last: Gauge::default(),
            actions: Family::default(),
            births: Histogram::new(BIRTH_SECONDS),
            unborn: Mutex::default(),
            queue: Gauge::default(),
            carried_out: AtomicU64::new(0),
        };
        // Every counter starts with 0, so that its rate is known from the first event on.
        for result in RESULTS {
            passes.results.get_or_create(&[("result", result)]).inc_by(0);
        }
        passes.act(actions::KINDS.map(|kind| (kind, 0)));
        let help = "Passes by result: settled, waiting, changed, incomplete or failed";
        registry.register("passes", help, passes.results.clone());
        registry.register("pass_duration_seconds", "Duration of passes", passes.durations.clone());
        let help = "Time at which the last complete pass ended, in seconds since the epoch; 0 if there was none";
        registry.register("last_pass_timestamp_seconds", help, passes.last.clone());
        registry.register("actions", "Actions of passes by kind and result: done or failed", passes.actions.clone());
        let help = "Time from the creation of clusters until they were first available";
        registry.register("cluster_time_to_available_seconds", help, passes.births.clone());
        registry.register("queue_depth", "Number of clusters that wait for a pass", passes.queue.clone());
        passes
    }

    /// Counts a pass that was carried out.
    pub fn passed(&self, outcome: &PassOutcome, took: Duration, now: Timestamp) {
        self.count(result(outcome), took);
        self.last.set(seconds(now));
        self.act(actions::of(outcome));
        let mut unborn = self.unborn.lock().unwrap_or_else(PoisonError::into_inner);
        for took in unborn.newly_available(&outcome.plan.documents, now) {
            self.births.observe(took.as_secs_f64());
        }
        self.carried_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the effects on a machine.
    pub fn applied(&self, applying: &ApplyOutcome) {
        self.act(actions::on_machine(applying));
    }

    /// Counts a pass that failed.
    pub fn failed(&self, took: Duration) {
        self.count(FAILED, took);
    }

    /// Records how many clusters wait for a pass.
    pub fn queued(&self, depth: usize) {
        self.queue.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// Returns whether a pass was carried out since the process started.
    #[must_use]
    pub fn any(&self) -> bool {
        self.carried_out.load(Ordering::Relaxed) > 0
    }

    fn act(&self, actions: impl IntoIterator<Item = (ActionKind, u64)>) {
        for (ActionKind { kind, result }, number) in actions {
            self.actions.get_or_create(&[("kind", kind), ("result", result)]).inc_by(number);
        }
    }

    fn count(&self, result: &'static str, took: Duration) {
        self.results.get_or_create(&[("result", result)]).inc();
        self.durations.observe(took.as_secs_f64());
    }
}

const FAILED: &str = "failed";
const RESULTS: [&str; 5] = ["settled", "waiting", "changed", "incomplete", FAILED];

/// Returns the result label of a pass that was carried out.
fn result(outcome: &PassOutcome) -> &'static str {
    if !outcome.failures.is_empty() {
        "incomplete"
    } else if outcome.settled {
        "settled"
    } else if outcome.effects > 0 || !outcome.plan.decisions.is_empty() || !outcome.plan.mint.is_empty() {
        "changed"
    } else {
        "waiting"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{
        ExpositionFormat,
        actions::tests::{failure, outcome},
        exposition,
    };

    #[test]
    fn a_pass_has_one_result() {
        let with = |change: fn(&mut PassOutcome)| {
            let mut outcome = outcome();
            outcome.settled = false;
            change(&mut outcome);
            result(&outcome)
        };
        assert_eq!(with(|_| ()), "waiting");
        assert_eq!(with(|outcome| outcome.settled = true), "settled");
        assert_eq!(with(|outcome| outcome.effects = 1), "changed");
        assert_eq!(with(|outcome| outcome.failures = vec![failure("hv-1")]), "incomplete");
    }

    #[test]
    fn passes_are_counted() {
        let mut registry = Registry::with_prefix("keelway");
        let passes = Passes::new(&mut registry);
        assert!(!passes.any());
        passes.failed(Duration::from_millis(20));
        assert!(!passes.any());
        passes.passed(&outcome(), Duration::from_millis(20), Timestamp::from_second(1000).unwrap());
        passes.queued(7);
        assert!(passes.any());
        let text = exposition::text(&registry, ExpositionFormat::Text).unwrap();
        for line in [
            "keelway_passes_total{result=\"settled\"} 1",
            "keelway_passes_total{result=\"failed\"} 1",
            "keelway_passes_total{result=\"incomplete\"} 0",
            "keelway_actions_total{kind=\"converge\",result=\"failed\"} 0",
            "keelway_pass_duration_seconds_count 2",
            "keelway_pass_duration_seconds_bucket{le=\"0.01\"} 0",
            "keelway_pass_duration_seconds_bucket{le=\"0.025\"} 2",
            "keelway_last_pass_timestamp_seconds 1000.0",
            "keelway_queue_depth 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
    }
}
