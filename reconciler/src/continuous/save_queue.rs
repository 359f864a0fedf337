//! Saves of many tasks as one. What is decided while a save is under way waits in a line and is saved together next, so that a store is
//! asked for much at once and nobody waits for as many saves as there are tasks.
//!
//! Who decides what something takes of machines knows of all that stands in the line ([`Keeper::staged`]).

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

/// Edits that are saved together at most: who comes meanwhile waits for these.
const AT_ONCE: usize = 32;

/// As long as no more than so many edits wait, numbers of configs do not wait for the others among them: an API server takes longer for more.
const FEW: usize = 4;

/// What a task makes of documents, as long as nobody else changed what it was decided on.
pub(super) enum Edit {
    /// What a plan changed of its part.
    Part {
        /// The part as it was.
        before: Documents,
        /// As it is to be.
        after: Documents,
        /// What that changes.
        changes: Vec<DocumentChange>,
    },
    /// The number of a config, which a machine is given next.
    Issue {
        /// Which machine.
        machine: HypervisorName,
        /// The number that was written down before; none for the first.
        before: Option<Applied>,
        /// The number.
        issue: Applied,
        /// Clusters that the config has components of.
        clusters: BTreeSet<ClusterId>,
    },
}

/// Those that wait to be saved. Numbers of configs come first: they are small, and machines wait for them.
pub(super) struct SaveQueue {
    waiting: VecDeque<QueuedEdit>,
    /// What there is once all of them are saved, and those that are being saved; none while there are none.
    staged: Option<Arc<Documents>>,
    /// How many are saved together next. Where a save fails it is repeated in smaller parts, until the one that spoils it is alone.
    at_once: usize,
}

struct QueuedEdit {
    edit: Edit,
    told: oneshot::Sender<SaveResult>,
}

/// Whether an edit is saved. It is not where somebody else changed what it was decided on.
type SaveResult = Result<bool, PassError>;

/// An edit that stands in the line.
pub(super) struct StagedEdit(oneshot::Receiver<SaveResult>);

impl Default for SaveQueue {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), staged: None, at_once: AT_ONCE }
    }
}

impl SaveQueue {
    /// Those that are saved next.
    fn next(&mut self) -> Vec<QueuedEdit> {
        // One whose task was cut off is waited for by nobody.
        self.waiting.retain(|waiting| !waiting.told.is_closed());
        let is_number = |waiting: &&QueuedEdit| matches!(waiting.edit, Edit::Issue { .. });
        let numbers = self.waiting.iter().take_while(is_number).count();
        let first = if numbers > 0 && self.waiting.len() <= FEW { numbers } else { self.waiting.len() };
        self.waiting.drain(..first.min(self.at_once)).collect()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Those before were saved.
    fn grow(&mut self) {
        self.at_once = AT_ONCE.min(2 * self.at_once);
    }

    /// These were not saved.
    fn requeue(&mut self, edits: Vec<QueuedEdit>) {
        self.at_once = (edits.len() / 2).max(1);
        for waiting in edits.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }
}

impl Edit {
    /// Makes it. Returns whether it did: where it was decided on other documents, they stay as they are.
    ///
    /// In place, so that of many edits each costs what it changes: a copy that others share is copied whole by its first change.
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

/// The numbers of machines' configs are as they are now, whoever writes the rest.
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
    /// Puts an edit into the line: from now on who decides knows of it. None: somebody else changed what it was decided on.
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
        let (told, staged) = oneshot::channel();
        let waiting = QueuedEdit { edit, told };
        match waiting.edit {
            Edit::Part { .. } => line.waiting.push_back(waiting),
            Edit::Issue { .. } => line.waiting.push_front(waiting),
        }
        Some(StagedEdit(staged))
    }

    /// Waits until an edit that was put into the line is saved. Whoever is free to saves those that stand first. Returns whether it is what
    /// there is now: it is not where somebody else changed what it was decided on.
    pub(super) async fn saved(&self, staged: Option<StagedEdit>) -> SaveResult {
        let Some(StagedEdit(mut told)) = staged else { return Ok(false) };
        loop {
            let _alone = tokio::select! {
                biased;
                // Who tells it does so before it goes.
                fate = &mut told => return fate.unwrap_or(Ok(false)),
                alone = self.store.lock() => alone,
            };
            self.save_first().await?;
        }
    }

    /// What there is once all that stands in the line is saved.
    pub(super) fn staged(&self) -> Arc<Documents> {
        let staged = self.line().staged.clone();
        staged.unwrap_or_else(|| self.state().documents.clone())
    }

    /// Decides anew what there will be: what is there is other than it was, or fewer wait.
    pub(super) fn stage_anew(&self) {
        let mut next = Documents::clone(&self.state().documents);
        let mut line = self.line();
        for waiting in &line.waiting {
            waiting.edit.make(self, &mut next);
        }
        line.staged = (!line.waiting.is_empty()).then(|| Arc::new(next));
    }

    /// Saves those that stand first, and tells each of them.
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
                drop(waiting.told.send(Ok(false)));
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
                    drop(waiting.told.send(Ok(true)));
                }
                Ok(())
            }
            Err(error) => self.save_broke_off(edits, error.into()).await,
        }
    }

    /// As far as a save came is what there is now.
    async fn save_broke_off(&self, mut edits: Vec<QueuedEdit>, error: PassError) -> Result<(), PassError> {
        self.is_unsure.store(true, Ordering::Relaxed);
        match edits.pop() {
            Some(alone) if edits.is_empty() => {
                let loaded = self.load().await;
                drop(alone.told.send(Err(error)));
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
