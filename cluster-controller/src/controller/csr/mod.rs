//! Approval of kubelets' certificates.

mod decision;
mod request;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use futures::StreamExt;
use k8s_openapi::{
    api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use keelway_api::worker::{BOOTSTRAP_USER, BOOTSTRAPPERS, Tombstone, WireGuardPeer};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
    runtime::{
        Controller,
        controller::Action,
        events::EventType,
        reflector::{ObjectRef, Store},
        watcher,
    },
};

use self::{
    decision::{CLIENT, Facts, Verdict, decide, node_of},
    request::Request,
};
use super::{
    Context, ControllerError,
    context::{call, log_outcome, on_error},
};

pub use self::decision::NODES;

/// Decides about every request, one after the other: what was approved for a name counts for the next one.
pub(super) async fn run(context: Arc<Context>) {
    let requests = Controller::new(Api::all(context.client.clone()), watcher::Config::default());
    let seen = requests.store();
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    requests
        .watches(peers, watcher::Config::default(), move |peer| waiting_for(&seen, &peer.name_any()))
        .with_config(kube::runtime::controller::Config::default().concurrency(1))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("requests", outcome))
        .await;
}

/// Undecided requests of a node: they wait for its addresses.
fn waiting_for(seen: &Store<CertificateSigningRequest>, node: &str) -> Vec<ObjectRef<CertificateSigningRequest>> {
    let waits = |csr: &Arc<CertificateSigningRequest>| {
        let request = Request::of(csr);
        !request.decided && node_of(&request) == Some(node)
    };
    seen.state().iter().filter(|csr| waits(csr)).map(|csr| ObjectRef::from_obj(&**csr)).collect()
}

async fn reconcile(csr: Arc<CertificateSigningRequest>, context: Arc<Context>) -> Result<Action, ControllerError> {
    let request = Request::of(&csr);
    if decide(&request, &Facts::default()) == Verdict::LeaveAlone {
        return Ok(Action::await_change());
    }
    let facts = match node_of(&request) {
        Some(node) => observe(node, &context).await?,
        None => Facts::default(),
    };
    match decide(&request, &facts) {
        Verdict::LeaveAlone | Verdict::Wait => {}
        Verdict::Approve(why) => record(&csr, "Approved", "KeelwayApproved", why, &context).await?,
        Verdict::Deny(denial) => record(&csr, "Denied", denial.reason(), &denial.to_string(), &context).await?,
    }
    Ok(Action::await_change())
}

/// What decides is read anew, not from a cache: a peer or an approval may be a moment old.
async fn observe(node: &str, context: &Context) -> Result<Facts, ControllerError> {
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    let tombstones = Api::<Tombstone>::all(context.client.clone());
    let requests = Api::<CertificateSigningRequest>::all(context.client.clone());
    let signer = ListParams::default().fields(&format!("spec.signerName={CLIENT}"));
    let (peer, tombstone, requests) = futures::try_join!(
        call("read the peer", peers.get_opt(node)),
        call("read the tombstone", tombstones.get_opt(node)),
        call("list requests", requests.list(&signer)),
    )?;
    let addresses = |peer: WireGuardPeer| {
        let given = peer.status.map(|status| status.addresses).unwrap_or_default();
        given.iter().filter_map(|address| address.parse().ok()).collect()
    };
    Ok(Facts {
        fault: context.configuration.check_node_name(node).err(),
        peer: peer.map(addresses),
        tombstone: tombstone.is_some(),
        approved_keys: requests
            .items
            .iter()
            .filter_map(|csr| approved_key(&Request::of(csr), node))
            .collect::<BTreeSet<_>>(),
    })
}

/// The key for which a token's request was approved.
fn approved_key(request: &Request, node: &str) -> Option<Vec<u8>> {
    let key = || request.subject.as_ref().ok().map(|subject| subject.key.clone());
    is_joining(request, node).then(key).flatten()
}

/// Whether a token's request for the name was approved.
fn is_joining(request: &Request, node: &str) -> bool {
    request.groups.contains(BOOTSTRAPPERS) && request.approved && node_of(request) == Some(node)
}

/// The id of the token that a worker joined with, of several the last one. Requests stay for an hour, a worker joins within seconds.
pub(super) async fn token_of(node: &str, context: &Context) -> Result<Option<String>, ControllerError> {
    let requests = Api::<CertificateSigningRequest>::all(context.client.clone());
    let signer = ListParams::default().fields(&format!("spec.signerName={CLIENT}"));
    let mut requests = call("list requests", requests.list(&signer)).await?.items;
    requests.retain(|csr| is_joining(&Request::of(csr), node));
    requests.sort_by(|one, other| one.metadata.creation_timestamp.cmp(&other.metadata.creation_timestamp));
    let user = requests.pop().and_then(|csr| csr.spec.username);
    Ok(user.and_then(|user| Some(user.strip_prefix(BOOTSTRAP_USER)?.to_owned())))
}

async fn record(
    csr: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
    context: &Context,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    let mut decided = csr.clone();
    let now = Time(Timestamp::now());
    let condition = CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    };
    let status = decided.status.get_or_insert_with(CertificateSigningRequestStatus::default);
    status.conditions.get_or_insert_default().push(condition);
    let requests = Api::<CertificateSigningRequest>::all(context.client.clone());
    // With the version that was decided about, so that two never decide about one.
    let name = csr.name_any();
    match requests.replace_subresource("approval", &name, &PostParams::default(), &decided).await {
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => return Ok(()),
        Err(source) => return Err(ControllerError::Api { what: "decide about the request", source: Box::new(source) }),
        Ok(_) => {}
    }
    context.metrics.count_request(kind, reason);
    tracing::info!(request = name, kind, reason, message, asker = csr.spec.username, "decided about a request");
    let severity = if kind == "Denied" { EventType::Warning } else { EventType::Normal };
    context.publish(csr, severity, reason, message).await;
    Ok(())
}
