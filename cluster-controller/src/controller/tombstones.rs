//! Tombstones go when their time has passed.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use keelway_api::worker::Tombstone;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
    runtime::{Controller, controller::Action, watcher},
};

use super::{
    Context, ControllerError,
    context::{has_code, log_outcome, now, on_error},
};

/// Looks after tombstones.
pub(super) async fn run(context: Arc<Context>) {
    Controller::new(Api::<Tombstone>::all(context.client.clone()), watcher::Config::default())
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("tombstones", outcome))
        .await;
}

async fn reconcile(tombstone: Arc<Tombstone>, context: Arc<Context>) -> Result<Action, ControllerError> {
    let left = tombstone.spec.until.0.duration_since(now());
    if left.is_positive() {
        return Ok(Action::requeue(Duration::try_from(left).unwrap_or_default() + Duration::from_secs(1)));
    }
    context.fence.check()?;
    let tombstones = Api::<Tombstone>::all(context.client.clone());
    let this = Preconditions { uid: tombstone.uid(), resource_version: tombstone.resource_version() };
    let parameters = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
    match tombstones.delete(&tombstone.name_any(), &parameters).await {
        Err(error) if has_code(&error, 404) || has_code(&error, 409) => {}
        Err(source) => return Err(ControllerError::Api { what: "delete the tombstone", source: Box::new(source) }),
        Ok(_) => tracing::info!(name = tombstone.name_any(), "the name of an evicted worker is free"),
    }
    Ok(Action::await_change())
}
