//! Reports on each NetworkPolicy that the default CNI configuration does not enforce it.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use keelway_component::watching::controller_of;
use kube::{
    Api,
    runtime::{controller::Action, events::EventType},
};

use super::{
    ControllerContext, ControllerError,
    context::{log_outcome, on_error},
    objects::NOT_ENFORCED,
};

/// The API server deletes an Event an hour after its last change. A new one is published before.
const AGAIN: Duration = Duration::from_secs(30 * 60);

/// Runs the controller of NetworkPolicies. If the cluster has another CNI configuration, it does nothing.
pub(super) async fn run(context: Arc<ControllerContext>) {
    if !context.configuration.addons.cni.enabled {
        return;
    }
    controller_of(Api::<NetworkPolicy>::all(context.client.clone()))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("network policies", outcome))
        .await;
}

async fn reconcile(policy: Arc<NetworkPolicy>, context: Arc<ControllerContext>) -> Result<Action, ControllerError> {
    context.fence.check()?;
    context.publish(&*policy, EventType::Warning, "NotEnforced", NOT_ENFORCED).await;
    Ok(Action::requeue(AGAIN))
}
