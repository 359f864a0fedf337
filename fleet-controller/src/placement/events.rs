//! Events about objects. They are written one after the other, beside the documents: an object is not placed later because of its Events.

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc::{Receiver, Sender, error::TrySendError};

use super::plan::PlannedEvent;
use crate::context::FleetContext;

/// How many Events wait. Events are for people, and those of a longer burst are dropped.
pub(super) const MOST: usize = 16_384;

/// An Event, and the object that it is about.
pub(super) type QueuedEvent = (ObjectReference, PlannedEvent);

/// Accepts Events.
pub(super) struct EventQueue(pub(super) Sender<QueuedEvent>);

impl EventQueue {
    pub(super) fn send(&self, object: ObjectReference, event: PlannedEvent) {
        if let Err(TrySendError::Full((object, event))) = self.0.try_send((object, event)) {
            tracing::warn!(object = object.name, reason = event.reason, "drops an Event: too many wait");
        }
    }
}

/// Writes Events until their sender is gone.
pub(super) async fn publish(mut queued: Receiver<QueuedEvent>, context: &FleetContext) {
    while let Some((object, event)) = queued.recv().await {
        context.publish_about(&object, event.kind(), event.reason, &event.note).await;
    }
}
