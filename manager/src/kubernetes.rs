//! A store that is a Kubernetes cluster: custom resources, and Secrets by our labels.
//!
//! Watches keep a copy of what is there, so that nothing is asked for again. What a pass decided is written document by document, in
//! the order in which each beginning is sound, and only over what the pass knew: whatever somebody else changed since is an error, and
//! the next pass begins with that. Status is written where status is, what is Keelway's own by server-side apply; the spec of a user's
//! document is never written.

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

use crate::{document_paths::path_of, metrics::DocumentSource};

/// The name by which API servers know what the manager wrote.
pub const MANAGER: &str = "keelway-manager";

/// The Lease of all managers of one store.
pub const LEASE: &str = "keelway-manager";

/// How long it may take until everything was seen for the first time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a cluster is no store now.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// What is in it was not seen yet.
    #[error(
        "the API server has not told of all documents yet; see that it serves {0}, and that the manager may list and watch them"
    )]
    NotSeen(String),
    /// Documents that something relies on were never sound: what they stand for is not known, so nothing is done.
    #[error("documents cannot be used")]
    Faults(#[source] Faults),
    /// Somebody changed a document since it was read. Read again.
    #[error("{0} was changed by somebody else meanwhile")]
    Changed(DocumentName),
    /// A pass deletes only what its user deleted.
    #[error("the deletion of {0} is its user's to ask for")]
    Deletion(DocumentName),
    /// A pass does not write this.
    #[error("the spec of {0} is its user's, and is not written over")]
    Spec(DocumentName),
    /// The API server refused.
    #[error("could not write {name}")]
    Write {
        /// What.
        name: DocumentName,
        /// Why.
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
    /// Held while changes are made, of which several cannot be made at once.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// What watches and writers have in common.
#[derive(Default)]
struct SharedWatchCache {
    held: Mutex<WatchCache>,
    /// Told of each change.
    changed: Notify,
}

impl SharedWatchCache {
    fn held(&self) -> MutexGuard<'_, WatchCache> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KubernetesStore {
    /// Begins to watch a cluster.
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

    /// Where Events are told.
    #[must_use]
    pub fn event_sender(&self) -> EventSender {
        self.teller.clone()
    }

    /// Brings the documents from one world to another, as far as nobody else changed them: the world that is reached is what the API
    /// server answered.
    ///
    /// # Errors
    /// Somebody changed one of those that are to be changed, or the API server refused. What comes before it in the order of changes is
    /// made.
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

    /// Sees all that there is now, whatever watches have told so far: they may be late, and whoever wrote before may have done so a moment
    /// ago.
    ///
    /// # Errors
    /// The API server does not tell.
    pub async fn relist(&self) -> Result<(), KubernetesError> {
        let mut watches = self.watches.lock().await;
        watches.end().await;
        self.shared.held().restart_watches();
        *watches = Watches::start(&self.client, &self.resources, &self.shared);
        self.seen().await
    }

    /// Waits until all that there is was seen.
    ///
    /// # Errors
    /// The API server does not tell.
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
        let StoreSnapshot { documents, rewrite: put_back, verdicts } = self.shared.held().take_snapshot();
        for (name, told) in verdicts {
            self.write_verdict(&name, told.as_ref()).await;
        }
        let documents = documents.map_err(KubernetesError::Faults)?;
        self.watches.lock().await.end_unreferred(&documents);
        let _one = self.writing.lock().await;
        for name in put_back {
            tracing::warn!(document = %name, "the document was taken away, and is written again");
            if let Err(error) = self.rewrite(&name, &documents).await {
                self.shared.held().record_missed(path_of(&name));
                return Err(error.into());
            }
        }
        Ok(documents)
    }
}

/// What only tells people is written with the first step: nothing is to be there before it.
fn together(
    mut steps: Vec<Vec<DocumentChange>>,
    only_tells: impl Fn(&DocumentChange) -> bool,
) -> Vec<Vec<DocumentChange>> {
    let told: Vec<DocumentChange> =
        steps.iter_mut().flat_map(|step| step.extract_if(.., |change| only_tells(change))).collect();
    steps.retain(|step| !step.is_empty());
    match steps.first_mut() {
        Some(first) => first.extend(told),
        None => steps.push(told),
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

    fn compact(&self, known: &mut Arc<Documents>) -> bool {
        self.shared.held().compact(known)
    }
}
