//! A store that is a Kubernetes cluster: custom resources, and Secrets by our labels.
//!
//! Watches keep a copy of what is there, so that nothing is asked for again. What a pass decided is written document by document, in
//! the order in which each beginning is sound, and only over what the pass knew: whatever somebody else changed since is an error, and
//! the next pass begins with that. Status is written where status is, what is Keelway's own by server-side apply; the spec of a user's
//! document is never written.

mod api;
mod events;
mod held;
mod object;
mod verdict;
mod watch;
mod write;

use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use keelway_api::{
    Documents,
    document::{Change, DocumentName},
    fault::Faults,
};
use keelway_reconciler::{Changing, Store, StoreError};
use kube::Client;
use tokio::{sync::Notify, time::timeout};

use api::Resources;
use held::{Held, Looked};
use watch::Watches;
use write::at_once;
pub(crate) use write::unless_gone;

pub use events::Teller;
use events::Writing;

use crate::{metrics::Kept, place::path_of};

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

type Failure = Box<dyn Error + Send + Sync>;

/// Documents in a Kubernetes cluster. Needs a runtime.
pub struct Kubernetes {
    client: Client,
    resources: Resources,
    shared: Arc<Shared>,
    teller: Teller,
    watches: tokio::sync::Mutex<Watches>,
    /// Held while changes are made, of which several cannot be made at once.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// What watches and writers have in common.
#[derive(Default)]
struct Shared {
    held: Mutex<Held>,
    /// Told of each change.
    changed: Notify,
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kubernetes {
    /// Begins to watch a cluster.
    #[must_use]
    pub fn open(client: Client) -> Self {
        let shared = Arc::new(Shared::default());
        let resources = Resources::new();
        let watches = Watches::start(&client, &resources, &shared);
        let writing = Arc::new(tokio::sync::Mutex::default());
        let told_beside = Writing { turns: writing.clone(), shared: shared.clone() };
        let teller = Teller::start(client.clone(), resources.clone(), told_beside);
        let watches = tokio::sync::Mutex::new(watches);
        Self { client, resources, shared, teller, watches, writing }
    }

    /// Where Events are told.
    #[must_use]
    pub fn teller(&self) -> Teller {
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
        let steps = together(to.steps_since(since), |change| to.only_tells(since, change));
        self.refuse_what_others_changed(&steps, since)?;
        for step in &steps {
            self.ensure_namespaces(step).await?;
            at_once(step.iter().map(|change| self.make(change, since, to))).await?;
        }
        Ok(())
    }

    fn refuse_what_others_changed(&self, steps: &[Vec<Change>], since: &Documents) -> Result<(), KubernetesError> {
        let mut held = self.shared.held();
        let is_other = |name: &&DocumentName| held.is_other(name, since);
        match steps.iter().flatten().map(Change::name).find(is_other) {
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
    pub async fn look_anew(&self) -> Result<(), KubernetesError> {
        let mut watches = self.watches.lock().await;
        watches.end().await;
        self.shared.held().begin_anew();
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

    async fn look(&self) -> Result<Arc<Documents>, Failure> {
        self.seen().await?;
        let Looked { documents, put_back, verdicts } = self.shared.held().look();
        for (name, told) in verdicts {
            self.tell(&name, told.as_ref()).await;
        }
        let documents = documents.map_err(KubernetesError::Faults)?;
        self.watches.lock().await.end_unreferred(&documents);
        let _one = self.writing.lock().await;
        for name in put_back {
            tracing::warn!(document = %name, "the document was taken away, and is written again");
            if let Err(error) = self.put_back(&name, &documents).await {
                self.shared.held().missed(path_of(&name));
                return Err(error.into());
            }
        }
        Ok(documents)
    }
}

/// What only tells people is written with the first step: nothing is to be there before it.
fn together(mut steps: Vec<Vec<Change>>, only_tells: impl Fn(&Change) -> bool) -> Vec<Vec<Change>> {
    let told: Vec<Change> =
        steps.iter_mut().flat_map(|step| step.extract_if(.., |change| only_tells(change))).collect();
    steps.retain(|step| !step.is_empty());
    match steps.first_mut() {
        Some(first) => first.extend(told),
        None => steps.push(told),
    }
    steps
}

#[async_trait]
impl Store for Kubernetes {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        let documents = self.look().await.map_err(|cause| StoreError { operation: "load", cause })?;
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

impl Kept for Kubernetes {
    fn documents(&self) -> Arc<Documents> {
        self.shared.held().world.clone().unwrap_or_default()
    }

    fn refused(&self) -> usize {
        self.shared.held().refused()
    }
}

#[async_trait]
impl Changing for Kubernetes {
    async fn changed(&self) {
        loop {
            let notified = self.shared.changed.notified();
            if self.shared.held().is_news() {
                return;
            }
            notified.await;
        }
    }

    fn put_together(&self, known: &mut Arc<Documents>) -> bool {
        self.shared.held().put_together(known)
    }
}
