//! The common parts of all controllers.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use keelway_component::requests::KubeRequestError;
use keelway_lease::{LeaseFence, NotHeld};
use kube::{
    Client, Resource, ResourceExt,
    runtime::{
        controller::{Action, Error as RunError},
        events::{Event, EventType, Recorder, Reporter},
        reflector::ObjectRef,
        watcher,
    },
};

use super::{ControllerConfiguration, MANAGER, metrics::ControllerMetrics};

/// The pause before a failed step is retried.
const AGAIN: Duration = Duration::from_secs(2);

/// The state that all controllers use.
pub(crate) struct ControllerContext {
    pub(crate) client: Client,
    pub(crate) configuration: ControllerConfiguration,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) fence: LeaseFence,
    recorder: Recorder,
}

/// A step of a controller failed.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] KubeRequestError),
    /// A claim of one of the peer's addresses belongs to another peer.
    #[error("an address of the peer is claimed by another peer; delete the peer and create it again")]
    Stolen,
    /// A kind of Keelway is not established yet.
    #[error("the CustomResourceDefinition {0} is not established yet")]
    NotDefined(String),
    /// Another replica holds the Lease, or may hold it already.
    #[error(transparent)]
    NotLeading(#[from] NotHeld),
}

/// Schedules the retry of a failed step.
#[expect(clippy::needless_pass_by_value, reason = "the signature is the library's")]
pub(crate) fn on_error<K>(_: Arc<K>, _: &ControllerError, context: Arc<ControllerContext>) -> Action {
    context.metrics.count_failure();
    Action::requeue(AGAIN)
}

/// Logs the outcome of a step.
pub(crate) async fn log_outcome<K>(
    controller: &'static str,
    outcome: Result<(ObjectRef<K>, Action), RunError<ControllerError, watcher::Error>>,
) where
    K: Resource<DynamicType = ()> + Debug,
{
    match outcome {
        Ok((object, _)) => tracing::debug!(controller, object = object.name, "reconciled"),
        Err(RunError::ObjectNotFound(_)) => {}
        Err(error) => {
            let chain = anyhow::Error::from(error);
            tracing::warn!(controller, error = format!("{chain:#}"), "cannot reconcile");
        }
    }
}

impl ControllerContext {
    pub(crate) fn new(
        client: Client,
        configuration: ControllerConfiguration,
        metrics: ControllerMetrics,
        fence: LeaseFence,
        identity: &str,
    ) -> Self {
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(identity.to_owned()) };
        // The fence guards every write through this client, even if the caller does not check the fence first.
        let client = fence.guard(client);
        Self { recorder: Recorder::new(client.clone(), reporter), client, configuration, metrics, fence }
    }

    /// Publishes an Event for a decision. If that fails, the failure is logged and ignored.
    pub(crate) async fn publish<K>(&self, object: &K, type_: EventType, reason: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.chars().take(1000).collect()),
            action: "Decide".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &object.object_ref(&())).await {
            tracing::debug!(object = object.name_any(), %error, "cannot publish an Event");
        }
    }
}

pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
