//! Applies objects, and applies them again after another client changed them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use futures::{
    StreamExt,
    stream::{self, BoxStream, SelectAll, select_all},
};
use keelway_component::requests::{call, ignore_conflict};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
    core::{ApiResource, DynamicResourceScope, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio::time::sleep_until;

use super::{
    ControllerContext, ControllerError, MANAGER,
    object_backoffs::ObjectBackoffs,
    objects::{LABEL, ObjectResource, PLACES},
};

/// The most concurrent requests for objects of one kind.
const AT_ONCE: usize = 8;

/// The key of an object: its index in [`PLACES`], and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    place: usize,
    name: String,
}

/// The version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectVersion {
    resource: Option<String>,
    /// Counts changes of the spec, if the kind has it. A change of the status leaves it unchanged.
    generation: Option<i64>,
}

/// The reaction to an event of a watch.
#[derive(Debug, PartialEq, Eq)]
enum WatchReaction {
    Ignore,
    Apply,
    Remove,
}

/// Keeps the desired objects applied.
pub(super) struct ObjectReconciler {
    context: Arc<ControllerContext>,
    wanted: BTreeMap<Key, DynamicObject>,
    applied: BTreeMap<Key, ObjectVersion>,
    /// Objects to apply, each with the time when it is due.
    pending: BTreeMap<Key, Instant>,
    /// Objects to delete.
    unwanted: BTreeMap<Key, PendingRemoval>,
    pauses: ObjectBackoffs<Key>,
    /// The objects of the current list so far.
    listed: BTreeSet<Key>,
    /// Desired objects that are neither applied nor deleted.
    held: BTreeSet<Key>,
}

/// An object that was applied earlier and must be deleted.
struct PendingRemoval {
    uid: Option<String>,
    due: Instant,
}

type ObjectEvent = (usize, watcher::Result<Event<PartialObjectMeta<DynamicObject>>>);

impl ObjectReconciler {
    /// Creates a reconciler for these objects. Objects whose resource is not in [`PLACES`] are ignored.
    pub(super) fn new(context: Arc<ControllerContext>, objects: Vec<DynamicObject>) -> Self {
        let wanted: BTreeMap<Key, DynamicObject> =
            objects.into_iter().filter_map(|object| Some((key_of(&object)?, object))).collect();
        let now = Instant::now();
        Self {
            context,
            pending: wanted.keys().map(|key| (key.clone(), now)).collect(),
            wanted,
            applied: BTreeMap::new(),
            unwanted: BTreeMap::new(),
            pauses: ObjectBackoffs::default(),
            listed: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    /// Leaves some of the objects as they are in the cluster, or absent.
    pub(super) fn hold(mut self, is_held: impl Fn(&DynamicObject) -> bool) -> Self {
        self.held = self.wanted.iter().filter(|(_, object)| is_held(object)).map(|(key, _)| key.clone()).collect();
        self.pending.retain(|key, _| !self.held.contains(key));
        self
    }

    /// Applies each object once.
    pub(super) async fn apply_all(&mut self) -> Result<(), ControllerError> {
        while let Some(key) = self.pending.first_key_value().map(|(key, _)| key.clone()) {
            let version = self.apply(&key).await?;
            self.pending.remove(&key);
            self.applied.insert(key, version);
        }
        Ok(())
    }

    /// Keeps the objects applied until the Lease is lost.
    pub(super) async fn run(mut self) {
        let mut notices = self.watch();
        loop {
            let due = self.pending.values().copied().chain(self.unwanted.values().map(|unwanted| unwanted.due)).min();
            let wait = async {
                match due {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some((place, notice)) = notices.next() => match notice {
                    Ok(event) => self.notice(place, event),
                    Err(error) => tracing::info!(%error, kind = kind(place), "a watch failed; retrying"),
                },
                () = wait => self.work().await,
            }
        }
    }

    fn watch(&self) -> SelectAll<BoxStream<'static, ObjectEvent>> {
        let config = watcher::Config::default().labels(&format!("{LABEL}={MANAGER}"));
        let watch = |place: usize| {
            let api: Api<PartialObjectMeta<DynamicObject>> = api_of(&self.context, place)?;
            let events = watcher(api, config.clone()).default_backoff();
            Some(events.map(move |event| (place, event)).boxed())
        };
        select_all((0..PLACES.len()).filter_map(watch))
    }

    /// Records what an event requires.
    fn notice(&mut self, place: usize, event: Event<PartialObjectMeta<DynamicObject>>) {
        let (object, is_gone) = match event {
            Event::Apply(object) | Event::InitApply(object) => (object, false),
            Event::Delete(object) => (object, true),
            Event::Init => {
                self.listed.retain(|key| key.place != place);
                return;
            }
            Event::InitDone => return self.find_missing(place),
        };
        let key = Key { place, name: object.name_any() };
        self.listed.insert(key.clone());
        let version = ObjectVersion { resource: object.resource_version(), generation: object.metadata.generation };
        if is_gone {
            self.unwanted.remove(&key);
        }
        match step(self.wanted.contains_key(&key), is_gone, self.applied.get(&key), &version) {
            WatchReaction::Ignore => {}
            WatchReaction::Apply => {
                tracing::debug!(kind = kind(place), name = key.name, "the object changed");
                self.await_turn(key);
            }
            WatchReaction::Remove if is_never_deleted(&key) || !is_own(&object) => {}
            WatchReaction::Remove => {
                let due = self.pauses.next(&key, Instant::now());
                self.unwanted.insert(key, PendingRemoval { uid: object.uid(), due });
            }
        }
    }

    /// Schedules objects that were applied and are absent from a new list: they were deleted while no watch was active.
    fn find_missing(&mut self, place: usize) {
        let is_missing = |key: &&Key| key.place == place && !self.listed.contains(*key);
        let missing: Vec<Key> = self.applied.keys().filter(is_missing).cloned().collect();
        for key in missing {
            self.await_turn(key);
        }
    }

    /// Schedules an object. If another client changes it repeatedly, the pauses between attempts grow.
    fn await_turn(&mut self, key: Key) {
        if self.held.contains(&key) {
            return;
        }
        let due = self.pauses.next(&key, Instant::now());
        self.pending.entry(key).or_insert(due);
    }

    /// Applies pending objects and deletes unwanted ones, as far as they are due. Failed ones become due again later.
    async fn work(&mut self) {
        let now = Instant::now();
        let pending = std::mem::take(&mut self.pending);
        let (due, later): (BTreeMap<_, _>, BTreeMap<_, _>) = pending.into_iter().partition(|(_, due)| *due <= now);
        self.pending = later;
        let mut left: BTreeSet<Key> = due.into_keys().collect();
        // One kind at a time: the API server refuses a binding whose policy does not exist yet.
        while let Some(place) = left.first().map(|key| key.place) {
            let later = left.split_off(&Key { place: place.saturating_add(1), name: String::new() });
            let wave = std::mem::replace(&mut left, later);
            self.apply_at_once(wave).await;
        }
        self.remove_unwanted(now).await;
    }

    async fn apply_at_once(&mut self, keys: BTreeSet<Key>) {
        for key in &keys {
            if self.applied.contains_key(key) {
                tracing::info!(kind = kind(key.place), name = key.name, "restoring an object that changed");
            }
            self.pauses.begin(key.clone(), Instant::now());
        }
        let this = &*self;
        let outcomes = stream::iter(keys).map(async |key| {
            let outcome = this.apply(&key).await;
            (key, outcome)
        });
        let outcomes: Vec<_> = outcomes.buffer_unordered(AT_ONCE).collect().await;
        for (key, outcome) in outcomes {
            match outcome {
                Ok(version) => {
                    self.applied.insert(key, version);
                }
                Err(error) => {
                    self.context.metrics.count_failure();
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(kind = kind(key.place), name = key.name, error, "cannot apply the object");
                    self.await_turn(key);
                }
            }
        }
    }

    async fn apply(&self, key: &Key) -> Result<ObjectVersion, ControllerError> {
        self.context.fence.check()?;
        let (Some(api), Some(object)) = (api_of::<DynamicObject>(&self.context, key.place), self.wanted.get(key))
        else {
            return Ok(ObjectVersion { resource: None, generation: None });
        };
        let parameters = PatchParams::apply(MANAGER).force();
        let applied = call("apply the object", api.patch(&key.name, &parameters, &Patch::Apply(object))).await?;
        self.context.metrics.count_application();
        Ok(ObjectVersion { resource: applied.resource_version(), generation: applied.metadata.generation })
    }

    /// Deletes what this controller applied earlier and no longer needs.
    async fn remove_unwanted(&mut self, now: Instant) {
        let unwanted = std::mem::take(&mut self.unwanted);
        let (due, later): (BTreeMap<_, _>, BTreeMap<_, _>) =
            unwanted.into_iter().partition(|(_, unwanted)| unwanted.due <= now);
        self.unwanted = later;
        for (key, PendingRemoval { uid, .. }) in due {
            self.pauses.begin(key.clone(), Instant::now());
            match self.remove(&key, uid.clone()).await {
                Ok(()) => tracing::info!(
                    kind = kind(key.place),
                    name = key.name,
                    "deleted an object that is no longer desired"
                ),
                Err(error) => {
                    self.context.metrics.count_failure();
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(kind = kind(key.place), name = key.name, error, "cannot delete the object");
                    let due = self.pauses.next(&key, Instant::now());
                    self.unwanted.insert(key, PendingRemoval { uid, due });
                }
            }
        }
    }

    async fn remove(&self, key: &Key, uid: Option<String>) -> Result<(), ControllerError> {
        self.context.fence.check()?;
        let Some(api) = api_of::<DynamicObject>(&self.context, key.place) else { return Ok(()) };
        let this = Preconditions { uid, resource_version: None };
        let parameters = DeleteParams { preconditions: Some(this), ..DeleteParams::background() };
        Ok(ignore_conflict("delete the object", api.delete(&key.name, &parameters)).await.map(drop)?)
    }
}

/// Returns the name of the kind, for logs.
fn kind(place: usize) -> &'static str {
    PLACES.get(place).map_or("", |place| place.kind)
}

/// Whether an object must never be deleted. With the definition of a kind, all peers would be deleted.
fn is_never_deleted(key: &Key) -> bool {
    PLACES.get(key.place).is_none_or(|place| place.kind == "CustomResourceDefinition")
}

/// Whether this controller applied the object. A copy by a user has the label, too.
fn is_own(object: &PartialObjectMeta<DynamicObject>) -> bool {
    object
        .managed_fields()
        .iter()
        .any(|field| field.manager.as_deref() == Some(MANAGER) && field.operation.as_deref() == Some("Apply"))
}

fn step(is_wanted: bool, is_gone: bool, applied: Option<&ObjectVersion>, seen: &ObjectVersion) -> WatchReaction {
    match (is_wanted, is_gone) {
        (true, true) => WatchReaction::Apply,
        (false, true) => WatchReaction::Ignore,
        (false, false) => WatchReaction::Remove,
        (true, false) => match applied {
            // It is not applied yet, and therefore already pending.
            None => WatchReaction::Ignore,
            Some(applied) if applied.resource == seen.resource => WatchReaction::Ignore,
            Some(applied) if applied.generation.is_some_and(|n| n > 0) && applied.generation == seen.generation => {
                WatchReaction::Ignore
            }
            Some(_) => WatchReaction::Apply,
        },
    }
}

fn key_of(object: &DynamicObject) -> Option<Key> {
    let types = object.types.as_ref()?;
    let is = |place: &ObjectResource| {
        place.api_version == types.api_version
            && place.kind == types.kind
            && place.namespace == object.metadata.namespace.as_deref()
    };
    Some(Key { place: PLACES.iter().position(is)?, name: object.name_any() })
}

fn api_of<K>(context: &ControllerContext, place: usize) -> Option<Api<K>>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    let ObjectResource { api_version, kind, plural, namespace } = *PLACES.get(place)?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    Some(match namespace {
        Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &resource),
        None => Api::all_with(context.client.clone(), &resource),
    })
}

/// Whether the object's resource is in [`PLACES`].
#[cfg(test)]
pub(super) fn has_place(object: &DynamicObject) -> bool {
    key_of(object).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(resource: &str, generation: Option<i64>) -> ObjectVersion {
        ObjectVersion { resource: Some(resource.to_owned()), generation }
    }

    #[test]
    fn changed_and_deleted_objects_are_applied_again() {
        let applied = version("5", Some(2));
        assert_eq!(step(true, true, Some(&applied), &applied), WatchReaction::Apply);
        assert_eq!(step(true, false, Some(&applied), &version("6", Some(3))), WatchReaction::Apply);
        let without = version("5", None);
        assert_eq!(step(true, false, Some(&without), &version("6", None)), WatchReaction::Apply);
    }

    #[test]
    fn unchanged_objects_are_left_alone() {
        let applied = version("5", Some(2));
        assert_eq!(step(true, false, Some(&applied), &applied), WatchReaction::Ignore);
        // Only the status changed.
        assert_eq!(step(true, false, Some(&applied), &version("6", Some(2))), WatchReaction::Ignore);
        assert_eq!(step(true, false, None, &applied), WatchReaction::Ignore);
        assert_eq!(step(false, true, None, &applied), WatchReaction::Ignore);
    }

    #[test]
    fn undesired_objects_are_deleted() {
        assert_eq!(step(false, false, None, &version("5", None)), WatchReaction::Remove);
    }

    #[test]
    fn a_copy_of_an_applied_object_is_kept() {
        let made = |manager: &str, operation: &str| {
            let fields = serde_json::json!([{ "manager": manager, "operation": operation }]);
            let metadata = serde_json::json!({ "name": "a", "managedFields": fields });
            serde_json::from_value(serde_json::json!({ "metadata": metadata })).unwrap()
        };
        assert!(is_own(&made(MANAGER, "Apply")));
        assert!(!is_own(&made("kubectl-client-side-apply", "Update")));
        assert!(!is_own(&made(MANAGER, "Update")));
    }
}
