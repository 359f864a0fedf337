//! Reserves claims whose peer is deleted for a time, and then deletes them.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::worker::{AddressClaim, WireGuardPeer};
use keelway_component::requests::{call, delete_precondition, ignore_conflict};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        Controller,
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde_json::json;

use super::{
    super::{
        ControllerContext, ControllerError,
        context::{log_outcome, now, on_error},
    },
    decision::{ClaimStep, claim_step},
};

/// Runs the controller of claims.
pub(super) async fn run(claims: Controller<AddressClaim>, context: Arc<ControllerContext>) {
    let seen = claims.store();
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    claims
        .watches(peers, watcher::Config::default(), move |peer| claims_of(&seen, &peer.name_any()))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("claims", outcome))
        .await;
}

fn claims_of(seen: &Store<AddressClaim>, node: &str) -> Vec<ObjectRef<AddressClaim>> {
    seen.state().iter().filter(|claim| claim.spec.node == node).map(|claim| ObjectRef::from_obj(&**claim)).collect()
}

async fn reconcile(claim: Arc<AddressClaim>, context: Arc<ControllerContext>) -> Result<Action, ControllerError> {
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    // Read from the API server: the peer may be slightly newer than its claim.
    let peer = call("read the peer", peers.get_opt(&claim.spec.node)).await?;
    let now = now();
    match claim_step(&claim, peer.as_ref(), &Time(now)) {
        ClaimStep::Keep => {}
        ClaimStep::Wake => release(&claim, None, &context).await?,
        ClaimStep::Rest => {
            let span = SignedDuration::try_from(Duration::from(context.configuration.worker_ttl))
                .unwrap_or(SignedDuration::MAX);
            release(&claim, Some(now.saturating_add(span).unwrap_or(Timestamp::MAX)), &context).await?;
        }
        ClaimStep::Await(until) => {
            let left = until.0.duration_since(now);
            return Ok(Action::requeue(Duration::try_from(left).unwrap_or_default() + Duration::from_secs(1)));
        }
        ClaimStep::Delete => delete(&claim, &context).await?,
    }
    Ok(Action::await_change())
}

async fn release(
    claim: &AddressClaim,
    until: Option<Timestamp>,
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    let claims = Api::<AddressClaim>::all(context.client.clone());
    let patch = json!({
        "metadata": { "resourceVersion": claim.resource_version() },
        "spec": { "restsUntil": until.map(Time) },
    });
    let (name, parameters, patch) = (claim.name_any(), PatchParams::default(), Patch::Merge(&patch));
    if ignore_conflict("write the claim", claims.patch(&name, &parameters, &patch)).await?.is_some() {
        tracing::info!(claim = name, node = claim.spec.node, ?until, "changed the reservation of an address");
    }
    Ok(())
}

async fn delete(claim: &AddressClaim, context: &ControllerContext) -> Result<(), ControllerError> {
    context.fence.check()?;
    let claims = Api::<AddressClaim>::all(context.client.clone());
    let (name, parameters) = (claim.name_any(), delete_precondition(claim));
    if ignore_conflict("delete the claim", claims.delete(&name, &parameters)).await?.is_some() {
        tracing::info!(claim = name, node = claim.spec.node, "released an address");
    }
    Ok(())
}
