//! What all controllers have in common.

use std::{fmt::Debug, future::Future, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use keelway_lease::{LeaseFence, NotHeld};
use kube::{
    Client, Resource, ResourceExt,
    api::{DeleteParams, Preconditions},
    runtime::{
        controller::{Action, Error as RunError},
        events::{Event, EventType, Recorder, Reporter},
        reflector::ObjectRef,
        watcher,
    },
};

use super::{ControllerConfiguration, MANAGER, metrics::ControllerMetrics};

/// How soon something is tried again that failed.
const AGAIN: Duration = Duration::from_secs(2);

/// What a controller works with.
pub(crate) struct ControllerContext {
    pub(crate) client: Client,
    pub(crate) configuration: ControllerConfiguration,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) fence: LeaseFence,
    recorder: Recorder,
}

/// A step of a controller that failed.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The API server did not do it.
    #[error("cannot {what}")]
    Api {
        /// What was to be done.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// The claim of an address that a peer was given is another's.
    #[error("an address of the peer is claimed by another one: delete the peer, and make it anew")]
    Stolen,
    /// A kind of ours is not in effect.
    #[error("the kind {0} is not in effect yet")]
    NotDefined(String),
    /// Another replica has the Lease, or may have it by now.
    #[error(transparent)]
    NotLeading(#[from] NotHeld),
}

/// Names the call in its error.
pub(crate) async fn call<T>(
    what: &'static str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, ControllerError> {
    call.await.map_err(|source| ControllerError::Api { what, source: Box::new(source) })
}

/// The same for what writes or deletes an object that was seen. None where it is gone, or another version of it is there by now: a
/// watch tells of that.
pub(crate) async fn ignore_conflict<T>(
    what: &'static str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<Option<T>, ControllerError> {
    match call.await {
        Err(error) if has_code(&error, 404) || has_code(&error, 409) => Ok(None),
        Err(source) => Err(ControllerError::Api { what, source: Box::new(source) }),
        Ok(written) => Ok(Some(written)),
    }
}

/// For the deletion of this object, and of no other one of its name.
pub(crate) fn only(this: &impl ResourceExt) -> DeleteParams {
    let preconditions = Some(Preconditions { uid: this.uid(), resource_version: None });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

/// The same for the version that was seen.
pub(crate) fn delete_precondition(this: &impl ResourceExt) -> DeleteParams {
    let preconditions = Some(Preconditions { uid: this.uid(), resource_version: this.resource_version() });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

/// Whether the API server said this code.
pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// What a controller does about a step that failed.
#[expect(clippy::needless_pass_by_value, reason = "the signature is the library's")]
pub(crate) fn on_error<K>(_: Arc<K>, _: &ControllerError, context: Arc<ControllerContext>) -> Action {
    context.metrics.count_failure();
    Action::requeue(AGAIN)
}

/// Tells of a step's end.
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
            tracing::warn!(controller, error = format!("{chain:#}"), "could not reconcile");
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
        // Whatever is written by it is fenced, also where nobody asks the fence first.
        let client = fence.guard(client);
        Self { recorder: Recorder::new(client.clone(), reporter), client, configuration, metrics, fence }
    }

    /// Tells people of a decision. It is a courtesy: a failure is logged and stops nothing.
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
            tracing::debug!(object = object.name_any(), %error, "could not publish an event");
        }
    }
}

/// The time now.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
