//! Reports the events of tasks: in the log, each once, in metrics, and as Events.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use keelway_api::{
    Documents,
    event::{DocumentEvent, of_change},
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    name::HypervisorName,
};
use keelway_base::error_chain::chain_text;
use keelway_planner::Decision;
use keelway_reconciler::{ApplyOutcome, PassError, PassOutcome, StoreError, Task, Watcher};
use keelway_stores::kubernetes::EventSender;

use crate::metrics::ManagerMetrics;

/// Reports what is new about each task.
#[derive(Debug)]
pub struct Reports {
    metrics: Arc<ManagerMetrics>,
    /// The sender of Events; none if the store is not a management cluster.
    teller: Option<EventSender>,
    tasks: BTreeMap<Task, TaskReport>,
    unread: Option<String>,
    settled: bool,
}

#[derive(Debug, Default)]
struct TaskReport {
    logged: BTreeSet<String>,
    settled: bool,
}

impl Watcher for Reports {
    fn began(&mut self, task: &Task) {
        self.tasks.entry(task.clone()).or_default();
    }

    fn passed(&mut self, task: &Task, outcome: &PassOutcome, took: Duration) {
        self.metrics.passes().passed(outcome, took, Timestamp::now());
        // Other decisions change documents, and are reported when the documents are saved.
        for decision in
            outcome.plan.decisions.iter().filter(|decision| matches!(decision, Decision::AssignPorts { .. }))
        {
            tracing::info!(task = %task, "{decision}");
        }
        let failures = outcome.failures.iter().map(|failure| format!("{}: {}", failure.subject, failure.reason));
        let waiting = outcome.plan.waiting.iter().map(ToString::to_string);
        self.report(task, failures.collect(), waiting.collect());
        self.settle(task, outcome.settled);
    }

    fn saved(&mut self, before: &Documents, after: &Documents) {
        for event in of_change(before, after) {
            let DocumentEvent { regarding, reason, note, warning, .. } = &event;
            if *warning {
                tracing::warn!(document = %regarding, reason, "{note}");
            } else {
                tracing::info!(document = %regarding, reason, "{note}");
            }
            if let Some(teller) = &self.teller {
                teller.send(event);
            }
        }
    }

    fn machine_observed(&mut self, machine: &HypervisorName, seen: &ObservedValue<MachineState>) {
        self.metrics.record_machine(machine, seen);
    }

    fn applied(&mut self, task: &Task, applying: &ApplyOutcome) {
        self.metrics.passes().applied(applying);
        self.report(task, applying.failures.clone(), Vec::new());
        self.settle(task, applying.effects == 0 && applying.failures.is_empty());
    }

    fn failed(&mut self, task: &Task, error: &PassError, took: Duration) {
        self.metrics.passes().failed(took);
        self.report(task, vec![chain_text(error)], Vec::new());
        self.settle(task, false);
    }

    fn queued(&mut self, clusters: usize) {
        self.metrics.passes().queued(clusters);
    }

    fn ended(&mut self, task: &Task) {
        if let Task::Machine(name) = task {
            self.metrics.record_machine(name, &ObservedValue::unreachable("the machine was deleted"));
        }
        self.tasks.remove(task);
    }

    fn load_failed(&mut self, error: &StoreError) {
        let text = chain_text(error);
        if self.unread.as_ref() != Some(&text) {
            tracing::error!("{text}");
        }
        self.unread = Some(text);
    }
}

impl Reports {
    /// Creates a reporter that updates these metrics.
    #[must_use]
    pub fn new(metrics: Arc<ManagerMetrics>) -> Self {
        Self { metrics, teller: None, tasks: BTreeMap::new(), unread: None, settled: false }
    }

    /// Returns a reporter that also sends Events.
    #[must_use]
    pub fn with_events(self, teller: EventSender) -> Self {
        Self { teller: Some(teller), ..self }
    }

    fn report(&mut self, task: &Task, failures: Vec<String>, waiting: Vec<String>) {
        let known = self.tasks.entry(task.clone()).or_default();
        for failure in failures.iter().filter(|failure| !known.logged.contains(*failure)) {
            tracing::error!(task = %task, "{failure}");
        }
        for waiting in waiting.iter().filter(|waiting| !known.logged.contains(*waiting)) {
            tracing::info!(task = %task, "{waiting}");
        }
        known.logged = failures.into_iter().chain(waiting).collect();
    }

    /// Records whether a task is settled. Reports once when all are.
    fn settle(&mut self, task: &Task, settled: bool) {
        self.tasks.entry(task.clone()).or_default().settled = settled;
        let all = self.tasks.values().all(|known| known.settled);
        if all && !self.settled {
            tracing::info!("settled");
        }
        self.settled = all;
    }
}
