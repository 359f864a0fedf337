//! What all loops of the controller use.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use keelway_api::condition::ConditionStatus;
use keelway_base::error_chain::ErrorChain;
use keelway_component::requests::KubeRequestError;
use keelway_fleet::names::CONTROLLER_FIELD_MANAGER;
use keelway_kube_object::{KubeObject, KubeObjectError};
use keelway_lease::{LeaseFence, NotHeld};
use kube::{
    Client, Resource,
    api::PatchParams,
    runtime::{
        controller::{Action, Error as RunError},
        events::{Event, EventType, Recorder, Reporter},
        reflector::ObjectRef,
        watcher,
    },
};

use serde_json::Value;
use tokio::sync::{Notify, RwLock};

use crate::{heartbeat::Heartbeat, metrics::FleetMetrics};

/// The pause before a failed step is retried.
const AGAIN: Duration = Duration::from_secs(2);

/// The state that all loops use, for as long as this replica holds the Lease.
pub(crate) struct FleetContext {
    /// A client that writes only while the Lease is held.
    pub(crate) client: Client,
    pub(crate) metrics: FleetMetrics,
    pub(crate) fence: LeaseFence,
    clusters: Mutex<BTreeMap<String, ClusterMemory>>,
    /// The clusters that are being removed. A Work is written under the read lock, and only if its cluster is not among them.
    pub(crate) leaving: RwLock<BTreeSet<String>>,
    /// Wakes the loop over clusters if one became busy or idle, or has no Works any more.
    pub(crate) usage: Arc<Notify>,
    recorder: Recorder,
}

/// What this replica knows of a cluster beside its documents.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterMemory {
    /// The last heartbeat.
    pub(crate) heartbeat: Option<Heartbeat>,
    /// The unique id of the Cluster whose agent got its rights.
    pub(crate) granted: Option<String>,
    /// Whether no token of a registration is left.
    pub(crate) has_no_token: bool,
    /// The status of `Ready` that was decided last.
    pub(crate) ready: Option<ConditionStatus>,
    /// Whether the fleet runs something there, if that is known.
    pub(crate) is_busy: Option<bool>,
}

/// A step of the controller failed.
#[derive(Debug, thiserror::Error)]
pub enum FleetControllerError {
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] KubeRequestError),
    /// An object cannot be applied.
    #[error(transparent)]
    Object(#[from] KubeObjectError),
    /// A kind of the fleet is not established yet.
    #[error("the CustomResourceDefinition {0} is not established yet")]
    NotDefined(String),
    /// The record of agents was changed by another writer at the same time.
    #[error("the record of agents changed at the same time")]
    RecordChanged,
    /// The record of agents cannot be read.
    #[error(
        "the ConfigMap kube-system/{name} has no valid record of {cluster}; restore it, or delete this key to let the name be used again"
    )]
    Record {
        /// The name of the ConfigMap.
        name: &'static str,
        /// The name of the cluster.
        cluster: String,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// Another replica holds the Lease, or may hold it already.
    #[error(transparent)]
    NotLeading(#[from] NotHeld),
}

impl FleetContext {
    pub(crate) fn new(client: &Client, metrics: FleetMetrics, fence: LeaseFence, identity: &str) -> Self {
        let reporter =
            Reporter { controller: CONTROLLER_FIELD_MANAGER.to_owned(), instance: Some(identity.to_owned()) };
        let client = fence.guard(client.clone());
        let recorder = Recorder::new(client.clone(), reporter);
        Self {
            client,
            metrics,
            fence,
            clusters: Mutex::default(),
            leaving: RwLock::default(),
            usage: Arc::default(),
            recorder,
        }
    }

    /// Reads or changes what is remembered of a cluster.
    pub(crate) fn remembered<T>(&self, cluster: &str, work: impl FnOnce(&mut ClusterMemory) -> T) -> T {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        work(clusters.entry(cluster.to_owned()).or_default())
    }

    /// Notes in which of these clusters the fleet runs something.
    pub(crate) fn set_usage(&self, all: &BTreeSet<String>, busy: &BTreeSet<String>) {
        let changed = all.iter().filter(|cluster| {
            let is_busy = Some(busy.contains(*cluster));
            self.remembered(cluster, |memory| std::mem::replace(&mut memory.is_busy, is_busy) != is_busy)
        });
        if changed.count() > 0 {
            self.usage.notify_one();
        }
    }

    /// Forgets a cluster.
    pub(crate) fn forget(&self, cluster: &str) {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster);
        self.count_clusters();
    }

    /// Updates the numbers of clusters by status.
    pub(crate) fn count_clusters(&self) {
        let clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        for status in [ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown] {
            let count = clusters.values().filter(|memory| memory.ready == Some(status)).count();
            self.metrics.set_clusters(status.as_str(), count);
        }
    }

    /// Publishes an Event. If that fails, the failure is logged and ignored.
    pub(crate) async fn publish<K>(&self, object: &K, type_: EventType, reason: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.publish_about(&object.object_ref(&()), type_, reason, note).await;
    }

    /// The same for an object of any kind.
    pub(crate) async fn publish_about(&self, object: &ObjectReference, type_: EventType, reason: &str, note: &str) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.chars().take(1000).collect()),
            action: "Decide".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, object).await {
            tracing::debug!(object = object.name, %error, "cannot publish an Event");
        }
    }
}

/// Returns the parameters of every server-side apply: the fields are the controller's, even if another manager set them before.
pub(crate) fn applied() -> PatchParams {
    PatchParams::apply(CONTROLLER_FIELD_MANAGER).force()
}

/// Applies an object of a kind that the controller knows.
pub(crate) async fn apply(object: &Value, context: &FleetContext) -> Result<(), FleetControllerError> {
    KubeObject::read(object)?.apply(&context.client, CONTROLLER_FIELD_MANAGER).await?;
    Ok(())
}

/// Schedules the retry of a failed step.
#[expect(clippy::needless_pass_by_value, reason = "the signature is the library's")]
pub(crate) fn on_error<K>(_: Arc<K>, _: &FleetControllerError, context: Arc<FleetContext>) -> Action {
    context.metrics.count_failure();
    Action::requeue(AGAIN)
}

/// Logs the outcome of a step.
pub(crate) async fn log_outcome<K>(
    controller: &'static str,
    outcome: Result<(ObjectRef<K>, Action), RunError<FleetControllerError, watcher::Error>>,
) where
    K: Resource<DynamicType = ()> + Debug,
{
    match outcome {
        Ok((object, _)) => tracing::debug!(controller, object = object.name, "reconciled"),
        Err(RunError::ObjectNotFound(_)) => {}
        Err(error) => tracing::warn!(controller, "cannot reconcile: {}", ErrorChain(&error)),
    }
}
