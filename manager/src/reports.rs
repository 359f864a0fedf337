//! What passes say, in the log: each thing once.

use std::{collections::BTreeSet, error::Error};

use keelway_reconciler::{Outcome, PassError, Watcher};

/// Tells what is new of a pass.
#[derive(Debug, Default)]
pub struct Reports {
    told: BTreeSet<String>,
    settled: bool,
}

impl Watcher for Reports {
    fn passed(&mut self, outcome: &Outcome) {
        for decision in &outcome.plan.decisions {
            tracing::info!("{decision}");
        }
        let failures = outcome.failures.iter().map(|failure| format!("{}: {}", failure.at, failure.why));
        let waiting = outcome.plan.waiting.iter().map(ToString::to_string);
        self.tell(failures.collect(), waiting.collect());
        if outcome.settled && !self.settled {
            tracing::info!("settled");
        }
        self.settled = outcome.settled;
    }

    fn failed(&mut self, error: &PassError) {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        self.tell(vec![text], Vec::new());
        self.settled = false;
    }
}

impl Reports {
    fn tell(&mut self, failures: Vec<String>, waiting: Vec<String>) {
        for failure in failures.iter().filter(|failure| !self.told.contains(*failure)) {
            tracing::error!("{failure}");
        }
        for waiting in waiting.iter().filter(|waiting| !self.told.contains(*waiting)) {
            tracing::info!("{waiting}");
        }
        self.told = failures.into_iter().chain(waiting).collect();
    }
}
