//! A store in a Kubernetes cluster: custom resources, and Secrets that are selected by Keelway's labels.
//!
//! Watches keep a copy of all objects, so that loading sends no requests. What a pass decided is written document by document, in an order in
//! which each intermediate state is valid. A document is written only if it is the one that the pass loaded. If another client changed it, the
//! save fails, and the next pass starts with that change. Status is written through the status subresource, and Keelway's own objects by
//! server-side apply. The spec of a user's document is never written.

mod api;
mod events;
mod object;
mod refusal_condition;
mod watch;
mod watch_cache;
mod write;

use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use keelway_api::{
    Documents,
    document::{DocumentChange, DocumentName},
    fault::Faults,
};
use keelway_reconciler::{ChangingDocuments, Store, StoreError};
use kube::Client;
use tokio::{sync::Notify, time::timeout};

use api::StoreResources;
use watch::Watches;
use watch_cache::{StoreSnapshot, WatchCache};
use write::at_once;
pub(crate) use write::ignore_not_found;

pub use events::EventSender;
use events::WriteActivity;

use crate::{DocumentSource, document_paths::path_of};

/// The field manager of Keelway's writes.
pub const MANAGER: &str = "keelway-manager";

/// The Lease that all managers of one store compete for.
pub const LEASE: &str = "keelway-manager";

/// How long the initial lists of all watches may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why documents could not be loaded or saved.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// The initial list of a watch is not complete yet.
    #[error(
        "the API server has not listed all documents yet; check that it serves {0}, and that the manager may list and watch them"
    )]
    NotSeen(String),
    /// A document was never valid, and its content decides which installation the machines obey. Nothing is done until it is repaired.
    #[error("some documents are invalid")]
    Faults(#[source] Faults),
    /// A document changed since it was read. The caller must load again.
    #[error("{0} was modified by another program")]
    Changed(DocumentName),
    /// A pass would delete a document that its user has not deleted.
    #[error("only a user may delete {0}")]
    Deletion(DocumentName),
    /// A pass would write a document's spec, which belongs to its user.
    #[error("only a user may change the spec of {0}")]
    Spec(DocumentName),
    /// The API server refused a write.
    #[error("could not write {name}")]
    Write {
        /// The document that was to be written.
        name: DocumentName,
        /// The cause.
        #[source]
        cause: Box<kube::Error>,
    },
}

type BoxedKubernetesError = Box<dyn Error + Send + Sync>;

/// Documents in a Kubernetes cluster. Needs a runtime.
pub struct KubernetesStore {
    client: Client,
    resources: StoreResources,
    shared: Arc<SharedWatchCache>,
    teller: EventSender,
    watches: tokio::sync::Mutex<Watches>,
    /// Held during a sequence of changes, because two sequences cannot be made at once.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// The state that watches and writers share.
#[derive(Default)]
struct SharedWatchCache {
    held: Mutex<WatchCache>,
    /// Notified of each change.
    changed: Notify,
}

impl SharedWatchCache {
    fn held(&self) -> MutexGuard<'_, WatchCache> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KubernetesStore {
    /// Starts watching a cluster.
    #[must_use]
    pub fn open(client: Client) -> Self {
        let shared = Arc::new(SharedWatchCache::default());
        let resources = StoreResources::new();
        let watches = Watches::start(&client, &resources, &shared);
        let writing = Arc::new(tokio::sync::Mutex::default());
        let told_beside = WriteActivity { turns: writing.clone(), shared: shared.clone() };
        let teller = EventSender::start(client.clone(), resources.clone(), told_beside);
        let watches = tokio::sync::Mutex::new(watches);
        Self { client, resources, shared, teller, watches, writing }
    }

    /// Returns the sender of Events.
    #[must_use]
    pub fn event_sender(&self) -> EventSender {
        self.teller.clone()
    }

    /// Writes the changes between two states of the documents. The resulting documents are those that the API server returns.
    ///
    /// # Errors
    /// A document that is to be changed was changed by another client, or the API server refused a write. Earlier changes in the order are made.
    pub async fn change(&self, since: &Documents, to: &Documents) -> Result<(), KubernetesError> {
        let _one = self.writing.lock().await;
        let steps = together(to.steps_since(since), |change| to.changes_only_conditions(since, change));
        self.check_conflicts(&steps, since)?;
        for step in &steps {
            self.ensure_namespaces(step).await?;
            at_once(step.iter().map(|change| self.make(change, since, to))).await?;
        }
        Ok(())
    }

    fn check_conflicts(&self, steps: &[Vec<DocumentChange>], since: &Documents) -> Result<(), KubernetesError> {
        let mut held = self.shared.held();
        let is_other = |name: &&DocumentName| held.is_other(name, since);
        match steps.iter().flatten().map(DocumentChange::name).find(is_other) {
            Some(other) => {
                held.wake();
                self.shared.changed.notify_waiters();
                Err(KubernetesError::Changed(other.clone()))
            }
            None => Ok(()),
        }
    }

    /// Lists all objects again, whatever the watches have reported: they may be late, and an earlier manager may have written a moment ago.
    ///
    /// # Errors
    /// The API server does not list all objects in time.
    pub async fn relist(&self) -> Result<(), KubernetesError> {
        let mut watches = self.watches.lock().await;
        watches.end().await;
        self.shared.held().restart_watches();
        *watches = Watches::start(&self.client, &self.resources, &self.shared);
        self.seen().await
    }

    /// Waits until the initial lists of all watches are complete.
    ///
    /// # Errors
    /// The API server does not list all objects in time.
    pub async fn seen(&self) -> Result<(), KubernetesError> {
        let all = async {
            loop {
                let notified = self.shared.changed.notified();
                if self.shared.held().unseen().is_none() {
                    return;
                }
                notified.await;
            }
        };
        let missing = || self.shared.held().unseen().unwrap_or_default();
        timeout(PATIENCE, all).await.map_err(|_| KubernetesError::NotSeen(missing()))
    }

    async fn read_changes(&self) -> Result<Arc<Documents>, BoxedKubernetesError> {
        self.seen().await?;
        let StoreSnapshot { documents, rewrite, verdicts } = self.shared.held().take_snapshot();
        for (name, verdict) in verdicts {
            self.write_verdict(&name, verdict.as_ref()).await;
        }
        let documents = documents.map_err(KubernetesError::Faults)?;
        self.watches.lock().await.end_unreferred(&documents);
        let _one = self.writing.lock().await;
        for name in rewrite {
            tracing::warn!(document = %name, "the document was deleted by another program; writing it again");
            if let Err(error) = self.rewrite(&name, &documents).await {
                self.shared.held().record_missed(path_of(&name));
                return Err(error.into());
            }
        }
        Ok(documents)
    }
}

/// Moves changes of conditions into the first step. They have no prerequisites.
fn together(
    mut steps: Vec<Vec<DocumentChange>>,
    only_tells: impl Fn(&DocumentChange) -> bool,
) -> Vec<Vec<DocumentChange>> {
    let of_conditions: Vec<DocumentChange> =
        steps.iter_mut().flat_map(|step| step.extract_if(.., |change| only_tells(change))).collect();
    steps.retain(|step| !step.is_empty());
    match steps.first_mut() {
        Some(first) => first.extend(of_conditions),
        None => steps.push(of_conditions),
    }
    steps
}

#[async_trait]
impl Store for KubernetesStore {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        let documents = self.read_changes().await.map_err(|cause| StoreError { operation: "load", cause })?;
        self.shared.held().loaded = documents.clone();
        Ok(documents)
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        let loaded = self.shared.held().loaded.clone();
        let changed = self.change(&loaded, documents).await;
        changed.map_err(|cause| StoreError { operation: "save", cause: cause.into() })?;
        self.shared.held().saved(documents);
        Ok(())
    }
}

impl DocumentSource for KubernetesStore {
    fn documents(&self) -> Arc<Documents> {
        self.shared.held().documents.clone().unwrap_or_default()
    }

    fn refused(&self) -> usize {
        self.shared.held().refused()
    }
}

#[async_trait]
impl ChangingDocuments for KubernetesStore {
    async fn changed(&self) {
        loop {
            let notified = self.shared.changed.notified();
            if self.shared.held().has_changes() {
                return;
            }
            notified.await;
        }
    }
}
