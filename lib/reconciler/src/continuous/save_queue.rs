//! Saves the edits of many tasks together. Edits that arrive during a save wait in a queue, and the next save writes all of them. The store has
//! fewer requests, and no task waits for one save per task.
//!
//! A decision that uses room or ports of machines considers all edits in the queue ([`InstallationReconciler::staged`]).

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use keelway_api::{
    Documents,
    document::{DocumentChange, DocumentName},
    hypervisor::Applied,
    name::{ClusterId, HypervisorName},
};
use tokio::sync::oneshot;

use super::InstallationReconciler;
use crate::PassError;

/// The most edits in one save. Further edits wait for it.
const AT_ONCE: usize = 32;

/// If at most this many edits wait, those of kind [`Edit::Issue`] are saved without the others: an API server needs more time for more documents.
const FEW: usize = 4;

/// A change of the documents. It applies only as long as the documents that it was decided on have not changed.
pub(super) enum Edit {
    /// The changes that a plan makes to its part of the documents.
    Part {
        /// The part before the change.
        before: Documents,
        /// The part after the change.
        after: Documents,
        /// The differences between the two.
        changes: Vec<DocumentChange>,
    },
    /// The term, generation and digest of the config that a machine receives next.
    Issue {
        machine: HypervisorName,
        /// The values that were recorded before; none for the first config.
        before: Option<Applied>,
        /// The new values.
        issue: Applied,
        /// The clusters that have components in the config.
        clusters: BTreeSet<ClusterId>,
    },
}

/// The edits that wait to be saved. Those of kind [`Edit::Issue`] come first: they are small, and machines wait for them.
pub(super) struct SaveQueue {
    waiting: VecDeque<QueuedEdit>,
    /// The documents after all waiting and running saves; none if there are none.
    staged: Option<Arc<Documents>>,
    /// The number of edits in the next save. If a save fails, it is repeated in smaller parts until the edit that causes the failure is alone.
    at_once: usize,
}

struct QueuedEdit {
    edit: Edit,
    result: oneshot::Sender<SaveResult>,
}

/// Whether an edit was saved. It is false if the documents that the edit was decided on had changed.
type SaveResult = Result<bool, PassError>;

/// An edit in the save queue.
pub(super) struct StagedEdit(oneshot::Receiver<SaveResult>);

impl Default for SaveQueue {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), staged: None, at_once: AT_ONCE }
    }
}

impl SaveQueue {
    /// Removes and returns the edits of the next save.
    fn next(&mut self) -> Vec<QueuedEdit> {
        // The task of this edit has ended and no longer waits for it.
        self.waiting.retain(|waiting| !waiting.result.is_closed());
        let is_number = |waiting: &&QueuedEdit| matches!(waiting.edit, Edit::Issue { .. });
        let numbers = self.waiting.iter().take_while(is_number).count();
        let first = if numbers > 0 && self.waiting.len() <= FEW { numbers } else { self.waiting.len() };
        self.waiting.drain(..first.min(self.at_once)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Doubles the size of the next save, because the last one succeeded.
    fn grow(&mut self) {
        self.at_once = AT_ONCE.min(2 * self.at_once);
    }

    /// Puts the edits of a failed save back, and halves the size of the next save.
    fn requeue(&mut self, edits: Vec<QueuedEdit>) {
        self.at_once = (edits.len() / 2).max(1);
        for waiting in edits.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }
}

impl Edit {
    /// Applies the edit to `documents`. Returns false and changes nothing if the documents that the edit was decided on have changed.
    ///
    /// It works in place, so that each edit costs only what it changes: the first change of a shared copy would copy all of it.
    fn make(&self, keeper: &InstallationReconciler<'_>, documents: &mut Documents) -> bool {
        match self {
            Self::Part { before, after, changes } => {
                if !keeper.still_applies(documents, (before, after), changes) {
                    return false;
                }
                let after = with_issues_of(after.clone(), documents, changes);
                for change in changes {
                    documents.make(change, &after);
                }
            }
            Self::Issue { machine, before, issue, clusters } => {
                let known = documents.hypervisors.get(machine);
                let issued = known.map(|document| document.status.as_ref().and_then(|status| status.issued.as_ref()));
                if issued != Some(before.as_ref()) || !keeper.has_clusters(clusters) {
                    return false;
                }
                if let Some(document) = documents.hypervisors.get_mut(machine) {
                    document.status.get_or_insert_default().issued = Some(issue.clone());
                }
            }
        }
        true
    }
}

/// Returns the documents with the current `status.issued` of all machines in `changes`. Only the tasks of machines change it.
fn with_issues_of(mut documents: Documents, now: &Documents, changes: &[DocumentChange]) -> Documents {
    for change in changes {
        let DocumentChange::Put(DocumentName::Hypervisor(name)) = change else { continue };
        let issued = |of: &Documents| of.hypervisors.get(name)?.status.as_ref()?.issued.clone();
        let known = issued(now);
        if known != issued(&documents)
            && let Some(machine) = documents.hypervisors.get_mut(name)
        {
            machine.status.get_or_insert_default().issued = known;
        }
    }
    documents
}

impl InstallationReconciler<'_> {
    /// Puts an edit into the save queue, where later decisions consider it. Returns none if the documents that it was decided on have changed.
    pub(super) fn stage(&self, edit: Edit) -> Option<StagedEdit> {
        let mut line = self.line();
        let is_first = line.staged.is_none();
        let known = line.staged.take().unwrap_or_else(|| self.state().documents.clone());
        let mut next = Arc::unwrap_or_clone(known);
        let is_made = edit.make(self, &mut next);
        line.staged = (is_made || !is_first).then(|| Arc::new(next));
        if !is_made {
            return None;
        }
        let (result, staged) = oneshot::channel();
        let waiting = QueuedEdit { edit, result };
        match waiting.edit {
            Edit::Part { .. } => line.waiting.push_back(waiting),
            Edit::Issue { .. } => line.waiting.push_front(waiting),
        }
        Some(StagedEdit(staged))
    }

    /// Waits until a staged edit is saved. Each waiting task that gets the store saves the first edits of the queue. Returns false if the documents
    /// that the edit was decided on had changed.
    pub(super) async fn saved(&self, staged: Option<StagedEdit>) -> SaveResult {
        let Some(StagedEdit(mut result)) = staged else { return Ok(false) };
        loop {
            let _alone = tokio::select! {
                biased;
                // The task that saved this edit sends the result before it releases the store.
                fate = &mut result => return fate.unwrap_or(Ok(false)),
                alone = self.store.lock() => alone,
            };
            self.save_first().await?;
        }
    }

    /// Returns the documents as they will be after all edits in the queue are saved.
    pub(super) fn staged(&self) -> Arc<Documents> {
        let staged = self.line().staged.clone();
        staged.unwrap_or_else(|| self.state().documents.clone())
    }

    /// Rebuilds the staged documents after a load, or after edits left the queue.
    pub(super) fn stage_anew(&self) {
        let mut next = Documents::clone(&self.state().documents);
        let mut line = self.line();
        for waiting in &line.waiting {
            waiting.edit.make(self, &mut next);
        }
        line.staged = (!line.waiting.is_empty()).then(|| Arc::new(next));
    }

    /// Saves the first edits of the queue, and sends each of them its result.
    async fn save_first(&self) -> Result<(), PassError> {
        if self.is_unsure.load(Ordering::Relaxed) {
            self.load().await?;
        }
        let mut next = Documents::clone(&self.state().documents);
        let mut edits = Vec::new();
        let first = self.line().next();
        self.notify_if_idle();
        for waiting in first {
            if waiting.edit.make(self, &mut next) {
                edits.push(waiting);
            } else {
                drop(waiting.result.send(Ok(false)));
            }
        }
        if edits.is_empty() {
            self.stage_anew();
            return Ok(());
        }
        match self.context.store.save(&next).await {
            Ok(()) => {
                self.state().saved(Arc::new(next));
                self.line().grow();
                self.stage_anew();
                for waiting in edits {
                    drop(waiting.result.send(Ok(true)));
                }
                Ok(())
            }
            Err(error) => self.save_broke_off(edits, error.into()).await,
        }
    }

    /// Handles a failed save: loads what the store contains now, and repeats the edits in smaller saves. A single edit is not repeated: its task
    /// receives the error.
    async fn save_broke_off(&self, mut edits: Vec<QueuedEdit>, error: PassError) -> Result<(), PassError> {
        self.is_unsure.store(true, Ordering::Relaxed);
        match edits.pop() {
            Some(alone) if edits.is_empty() => {
                let loaded = self.load().await;
                drop(alone.result.send(Err(error)));
                loaded.map_err(PassError::from)
            }
            last => {
                edits.extend(last);
                self.line().requeue(edits);
                Ok(self.load().await?)
            }
        }
    }
}
