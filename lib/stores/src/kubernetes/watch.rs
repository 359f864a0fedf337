//! Watches all objects that a store consists of.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::StreamExt;
use futures::future::join_all;
use keelway_api::{
    Documents,
    documents::SecretName,
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
};
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio::task::JoinHandle;

use super::{
    SharedWatchCache,
    api::StoreResources,
    object::{
        ObjectRevision, is_in_keelway_namespace, is_keelway_namespace, is_released, path, references, referred_to, text,
    },
    watch_cache::WatchSource,
};

/// The watches of a store. They end when this is dropped.
pub(super) struct Watches {
    tasks: Vec<JoinHandle<()>>,
    given: Arc<SecretWatches>,
}

/// Watches on users' Secrets, each by name, so that the manager needs no permission to read other Secrets.
struct SecretWatches {
    client: Client,
    secret: ApiResource,
    shared: Arc<SharedWatchCache>,
    referred: Mutex<ReferredSecrets>,
}

#[derive(Default)]
struct ReferredSecrets {
    tasks: BTreeMap<SecretName, JoinHandle<()>>,
    /// The Secrets that each object refers to.
    by: BTreeMap<PathBuf, BTreeSet<SecretName>>,
    /// Whether Secrets may be watched to which no object refers any more.
    dropped: bool,
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.given.referred().tasks.values().for_each(JoinHandle::abort);
    }
}

impl Watches {
    pub(super) fn start(client: &Client, resources: &StoreResources, shared: &Arc<SharedWatchCache>) -> Self {
        let given = Arc::new(SecretWatches {
            client: client.clone(),
            secret: resources.secret.clone(),
            shared: shared.clone(),
            referred: Mutex::default(),
        });
        let all = |resource: &ApiResource, label: Option<&str>| {
            let plural = &resource.plural;
            let source = label.map_or_else(|| plural.clone(), |label| format!("{plural} with the label {label}"));
            let selector = label.map(|label| watcher::Config::default().labels(label)).unwrap_or_default();
            let api = Api::all_with(client.clone(), resource);
            let own = label.is_some();
            let watch = ObjectWatch {
                source: source.into(),
                api,
                selector,
                own,
                resource: resource.clone(),
                shared: shared.clone(),
            };
            watch.begin(given.clone())
        };
        let tasks = vec![
            all(&resources.class, None),
            all(&resources.hypervisor, None),
            all(&resources.cluster, None),
            all(&resources.component, None),
            all(&resources.secret, Some(CLUSTER_LABEL)),
            all(&resources.secret, Some(INSTALLATION_LABEL)),
        ];
        Self { tasks, given }
    }

    /// Ends the watches. After it returns, they report nothing more.
    pub(super) async fn end(&mut self) {
        let own = std::mem::take(&mut self.tasks);
        own.iter().for_each(JoinHandle::abort);
        join_all(own).await;
        // The tasks that add to these watches have ended.
        let given = std::mem::take(&mut self.given.referred().tasks);
        given.values().for_each(JoinHandle::abort);
        join_all(given.into_values()).await;
    }

    /// Ends the watches on Secrets to which neither an object nor a document in effect refers. Otherwise an object that refers to one Secret after
    /// another would add more and more watches.
    pub(super) fn end_unreferred(&self, world: &Documents) {
        self.given.end_unreferred(world);
    }
}

impl SecretWatches {
    fn referred(&self) -> MutexGuard<'_, ReferredSecrets> {
        self.referred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the Secrets that an object refers to. The store waits for their first lists before it loads.
    fn refer(self: &Arc<Self>, path: &Path, names: BTreeSet<SecretName>) {
        let mut referred = self.referred();
        for name in &names {
            referred.tasks.entry(name.clone()).or_insert_with_key(|name| {
                let SecretName { namespace, name: secret } = name;
                let watch = ObjectWatch {
                    source: source_of(name).into(),
                    api: Api::namespaced_with(self.client.clone(), namespace, &self.secret),
                    own: false,
                    selector: watcher::Config::default().fields(&format!("metadata.name={secret}")),
                    resource: self.secret.clone(),
                    shared: self.shared.clone(),
                };
                watch.begin(self.clone())
            });
        }
        let before = referred.by.remove(path).unwrap_or_default();
        referred.dropped |= !before.is_subset(&names);
        if !names.is_empty() {
            referred.by.insert(path.to_owned(), names);
        }
    }

    fn end_unreferred(&self, world: &Documents) {
        let mut referred = self.referred();
        if !referred.dropped {
            return;
        }
        let by_objects: BTreeSet<&SecretName> = referred.by.values().flatten().collect();
        let by_documents = referred_to(world);
        // Watches by label report the Secrets of Keelway's namespaces, too, so these watches stay.
        let left =
            referred.tasks.keys().filter(|name| !by_objects.contains(name) && !is_keelway_namespace(&name.namespace));
        let (kept, ended): (Vec<_>, Vec<_>) = left.cloned().partition(|name| by_documents.contains(name));
        referred.dropped = !kept.is_empty();
        for name in ended {
            if let Some(task) = referred.tasks.remove(&name) {
                task.abort();
            }
            self.shared.held().end(&source_of(&name));
        }
        self.shared.changed.notify_waiters();
    }
}

fn source_of(SecretName { namespace, name }: &SecretName) -> String {
    format!("Secret {namespace}/{name}")
}

struct ObjectWatch {
    source: WatchSource,
    api: Api<DynamicObject>,
    selector: watcher::Config,
    /// Whether the watch is only for Keelway's own Secrets.
    own: bool,
    resource: ApiResource,
    shared: Arc<SharedWatchCache>,
}

/// The objects of a list in progress, and the number of the last write before its request.
struct Listing {
    all: BTreeSet<PathBuf>,
    asked: u64,
}

impl ObjectWatch {
    fn begin(self, given: Arc<SecretWatches>) -> JoinHandle<()> {
        self.shared.held().begin(&self.source);
        tokio::spawn(async move { self.follow(&given).await })
    }

    /// Watches with streaming lists, which need less memory on the API server. If the API server does not support them, watches with paged lists.
    async fn follow(&self, given: &Arc<SecretWatches>) {
        let streaming = self.selector.clone().streaming_lists();
        self.read(streaming, given, true).await;
        self.read(self.selector.clone(), given, false).await;
    }

    /// Ends if streaming lists are requested and the API server does not support them.
    async fn read(&self, config: watcher::Config, given: &Arc<SecretWatches>, streams: bool) {
        let mut events = pin!(watcher(self.api.clone(), config).default_backoff());
        let mut listing = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.take(event, &mut listing, given),
                Err(error) if streams && serves_no_streams(&error) => return,
                Err(error) => tracing::warn!(watch = &*self.source, %error, "a watch was interrupted; retrying"),
            }
        }
    }

    fn take(&self, event: Event<DynamicObject>, listing: &mut Option<Listing>, given: &Arc<SecretWatches>) {
        match event {
            Event::Init => {
                *listing = Some(Listing { all: BTreeSet::new(), asked: self.shared.held().writes() });
                return;
            }
            Event::InitApply(object) => {
                let path = self.tracked_path(&object, given);
                if let (Some(listing), Some(path)) = (listing.as_mut(), path) {
                    listing.all.insert(path);
                }
            }
            Event::Apply(object) => drop(self.tracked_path(&object, given)),
            Event::Delete(object) => {
                if let Some(path) = self.path(&object) {
                    given.refer(&path, BTreeSet::new());
                    self.shared.held().record_deletion(path, &ObjectRevision::of(&object));
                }
            }
            Event::InitDone => {
                if let Some(Listing { all, asked }) = listing.take() {
                    let lost = self.shared.held().listed(&self.source, &all, asked);
                    for path in &lost {
                        given.refer(path, BTreeSet::new());
                    }
                }
            }
        }
        self.shared.changed.notify_waiters();
    }

    /// Returns the path of an object; none for a Secret that has Keelway's label but is outside Keelway's namespaces.
    fn path(&self, object: &DynamicObject) -> Option<PathBuf> {
        (!self.own || is_in_keelway_namespace(object)).then(|| path(&self.resource, object))?
    }

    fn tracked_path(&self, object: &DynamicObject, given: &Arc<SecretWatches>) -> Option<PathBuf> {
        let path = self.path(object)?;
        given.refer(&path, references(&self.resource, object));
        let text = (!is_released(&self.resource, object)).then(|| text(&self.resource, object));
        self.shared.held().seen(&self.source, path.clone(), ObjectRevision::of(object), text);
        Some(path)
    }
}

/// Returns whether the error means that the API server does not know `sendInitialEvents`: it calls the request invalid.
fn serves_no_streams(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(cause) | watcher::Error::WatchStartFailed(cause)) = error else {
        return false;
    };
    matches!(cause, kube::Error::Api(status) if matches!(status.code, 400 | 422))
}
