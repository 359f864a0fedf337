//! What the keeper tells those who watch. It never waits for them: who is slow sees the newest, and misses what was between.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use keelway_api::{hypervisor::Applied, machine::MachineState, name::PodName};
use tokio::sync::{broadcast, watch};

/// How many lines of progress wait for a slow reader before some are lost to it.
const LINES: usize = 256;

/// How the keeper is getting on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReconcileStatus {
    /// Goes up with each change of the machine's state.
    pub(super) revision: u64,
    /// The newest question (see [`Board::ask`]) after which all was done that could be.
    pub(super) answered: u64,
    /// Effects that were done since the agent's start.
    pub(super) effects: u64,
    /// What failed and was not done since.
    pub(super) failures: Vec<String>,
    /// What is put off.
    pub(super) postponed: Vec<String>,
    /// Ids of containers that answered when they were asked last.
    pub(super) healthy: BTreeSet<String>,
    /// Etcd members whose store takes no writes, as they said last.
    pub(super) no_space: BTreeSet<PodName>,
}

/// What a look at the machine found.
#[derive(Debug, Clone)]
pub(super) struct MachineObservation {
    pub(super) state: Arc<MachineState>,
    /// The config that was in effect when it began.
    pub(super) config: Option<Applied>,
}

/// Where the keeper and the API meet.
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
    /// Asks the keeper to look again. Returns the number that [`ReconcileStatus::answered`] reaches once it did, and did what there was
    /// to do.
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

    /// Changes the status, and tells of it where it differs.
    pub(super) fn publish(&self, change: impl FnOnce(&mut ReconcileStatus)) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    /// Keeps what the last look found, of which revisions are told.
    pub(super) fn set_observation(&self, found: Option<MachineObservation>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// What the last look found, where it found something.
    pub(super) fn last(&self) -> Option<Arc<MachineState>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.as_ref().map(|found| Arc::clone(&found.state))
    }

    /// What the last look found, where it was taken with this config in effect, and a revision was told that is as new as this one.
    pub(super) fn found(&self, revision: u64, config: Option<&Applied>) -> Option<Arc<MachineState>> {
        if revision == 0 || self.status.borrow().revision < revision {
            return None;
        }
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.as_ref().filter(|found| found.config.as_ref() == config).map(|found| Arc::clone(&found.state))
    }

    pub(super) fn begins(&self, effect: String) {
        // Nobody may be listening.
        let _ = self.effects.send(effect);
    }
}
