//! Deletes expired tombstones.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use keelway_api::worker::Tombstone;
use keelway_component::{
    requests::{delete_precondition, ignore_conflict},
    watching::controller_of,
};
use kube::{Api, ResourceExt, runtime::controller::Action};

use super::{
    ControllerContext, ControllerError,
    context::{log_outcome, now, on_error},
};

/// Runs the controller of tombstones.
pub(super) async fn run(context: Arc<ControllerContext>) {
    controller_of(Api::<Tombstone>::all(context.client.clone()))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("tombstones", outcome))
        .await;
}

async fn reconcile(tombstone: Arc<Tombstone>, context: Arc<ControllerContext>) -> Result<Action, ControllerError> {
    let left = tombstone.spec.until.0.duration_since(now());
    if left.is_positive() {
        return Ok(Action::requeue(Duration::try_from(left).unwrap_or_default() + Duration::from_secs(1)));
    }
    context.fence.check()?;
    let tombstones = Api::<Tombstone>::all(context.client.clone());
    let (name, parameters) = (tombstone.name_any(), delete_precondition(&*tombstone));
    if ignore_conflict("delete the tombstone", tombstones.delete(&name, &parameters)).await?.is_some() {
        tracing::info!(name, "released the name of an evicted worker");
    }
    Ok(Action::await_change())
}
