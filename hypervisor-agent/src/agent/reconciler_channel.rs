//! The status that the reconciler publishes to watchers. It never waits for them: a slow watcher gets the newest status, and misses those between.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use keelway_api::{hypervisor::Applied, machine::MachineState, name::PodName};
use tokio::sync::{broadcast, watch};

/// How many lines of progress are queued for a slow reader. Older lines are lost.
const LINES: usize = 256;

/// The status of reconciliation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReconcileStatus {
    /// Increases with each change of the machine's state.
    pub(super) revision: u64,
    /// The newest request (see [`ReconcilerChannel::request_look`]) after which everything that can be done was done.
    pub(super) answered: u64,
    /// How many effects were done since the agent started.
    pub(super) effects: u64,
    /// Failures that were not resolved since.
    pub(super) failures: Vec<String>,
    /// Postponed actions.
    pub(super) postponed: Vec<String>,
    /// Ids of containers whose last probe succeeded.
    pub(super) healthy: BTreeSet<String>,
    /// etcd members whose store accepts no writes, by their last report.
    pub(super) no_space: BTreeSet<PodName>,
}

/// The result of a look.
#[derive(Debug, Clone)]
pub(super) struct MachineObservation {
    pub(super) state: Arc<MachineState>,
    /// The config in effect when the look began.
    pub(super) config: Option<Applied>,
}

/// The channel between the reconciler and the API.
#[derive(Debug)]
pub(super) struct ReconcilerChannel {
    asked: watch::Sender<u64>,
    status: watch::Sender<ReconcileStatus>,
    found: Mutex<Option<MachineObservation>>,
    effects: broadcast::Sender<String>,
}

impl Default for ReconcilerChannel {
    fn default() -> Self {
        Self {
            asked: watch::Sender::new(0),
            status: watch::Sender::new(ReconcileStatus::default()),
            found: Mutex::default(),
            effects: broadcast::Sender::new(LINES),
        }
    }
}

impl ReconcilerChannel {
    /// Requests a look. Returns the number that [`ReconcileStatus::answered`] reaches once the look and the work that follows from it are done.
    pub(super) fn request_look(&self) -> u64 {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        number
    }

    pub(super) fn look_requests(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
    }

    pub(super) fn status(&self) -> watch::Receiver<ReconcileStatus> {
        self.status.subscribe()
    }

    pub(super) fn effects(&self) -> broadcast::Receiver<String> {
        self.effects.subscribe()
    }

    /// Changes the status, and notifies watchers if it differs.
    pub(super) fn publish(&self, change: impl FnOnce(&mut ReconcileStatus)) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    /// Stores the result of the last look. Revisions refer to it.
    pub(super) fn set_observation(&self, found: Option<MachineObservation>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Returns the state from the last look, if there is one.
    pub(super) fn last(&self) -> Option<Arc<MachineState>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.as_ref().map(|found| Arc::clone(&found.state))
    }

    /// Returns the state from the last look if the look ran with this config in effect, and if the published revision is at least `revision`.
    pub(super) fn found(&self, revision: u64, config: Option<&Applied>) -> Option<Arc<MachineState>> {
        if revision == 0 || self.status.borrow().revision < revision {
            return None;
        }
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.as_ref().filter(|found| found.config.as_ref() == config).map(|found| Arc::clone(&found.state))
    }

    pub(super) fn begins(&self, effect: String) {
        // Fails if there is no reader.
        let _ = self.effects.send(effect);
    }
}
