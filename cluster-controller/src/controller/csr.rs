//! Approval of kubelets' certificates.

mod decision;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use keelway_api::worker::{BOOTSTRAP_USER, Tombstone, WireGuardPeer, WorkerIdentity};
use keelway_component::{
    approval::write_approval, certificate_request::Request, requests::call, watching::controller_of,
};
use kube::{
    Api, ResourceExt,
    runtime::{
        controller::Action,
        events::EventType,
        reflector::{ObjectRef, Store},
        watcher,
    },
};

use self::decision::{CLIENT, CsrDecision, Denial, NodeFacts, decide, node_of};
use super::{
    ControllerContext, ControllerError,
    context::{log_outcome, now, on_error},
    identities::{
        self,
        decision::{joined, renewed},
    },
};

pub use self::decision::NODES;
pub(crate) use self::decision::{CLIENT as CLIENT_SIGNER, SERVING as SERVING_SIGNER};

/// The pause before a request is checked again whose client certificate is not recorded yet.
const SOON: Duration = Duration::from_secs(5);

/// Decides about all requests, one at a time: an approval for a name counts for the next request.
pub(super) async fn run(context: Arc<ControllerContext>) {
    let requests = controller_of(Api::all(context.client.clone()));
    let seen = requests.store();
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    requests
        .watches(peers, watcher::Config::default(), move |peer| waiting_for(&seen, &peer.name_any()))
        .with_config(kube::runtime::controller::Config::default().concurrency(1))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("requests", outcome))
        .await;
}

/// Returns the undecided requests of a node, which wait for its addresses.
fn waiting_for(seen: &Store<CertificateSigningRequest>, node: &str) -> Vec<ObjectRef<CertificateSigningRequest>> {
    let waits = |csr: &Arc<CertificateSigningRequest>| {
        let request = Request::of(csr);
        !request.decided && node_of(&request) == Some(node)
    };
    seen.state().iter().filter(|csr| waits(csr)).map(|csr| ObjectRef::from_obj(&**csr)).collect()
}

async fn reconcile(
    csr: Arc<CertificateSigningRequest>,
    context: Arc<ControllerContext>,
) -> Result<Action, ControllerError> {
    let request = Request::of(&csr);
    let node = node_of(&request);
    if let (CLIENT, Some(node), Ok(subject)) = (request.signer.as_str(), node, &request.subject) {
        identities::record_certificate_id(&csr, node, &subject.key, &context).await?;
    }
    if decide(&request, &NodeFacts::default()) == CsrDecision::LeaveAlone {
        return Ok(Action::await_change());
    }
    let (facts, known) = match node {
        Some(node) => observe(node, &context).await?,
        None => (NodeFacts::default(), WorkerObjects::default()),
    };
    let mut verdict = decide(&request, &facts);
    if let (CsrDecision::Approve(_), CLIENT, Some(node)) = (&verdict, request.signer.as_str(), node)
        && !identify(node, &request, &facts, &known, &context).await?
    {
        verdict = CsrDecision::Deny(Denial::NameSpent(node.to_owned()));
    }
    match verdict {
        CsrDecision::LeaveAlone | CsrDecision::Wait => {}
        CsrDecision::WaitForIdentity => return Ok(Action::requeue(SOON)),
        CsrDecision::Approve(why) => record(&csr, "Approved", "KeelwayApproved", why, &context).await?,
        CsrDecision::Deny(denial) => record(&csr, "Denied", denial.reason(), &denial.to_string(), &context).await?,
    }
    Ok(Action::await_change())
}

/// The objects that the facts come from.
#[derive(Default)]
struct WorkerObjects {
    peer: Option<WireGuardPeer>,
    identity: Option<WorkerIdentity>,
}

/// Reads the facts from the API server, not from a cache: a peer or an approval may be very recent.
async fn observe(node: &str, context: &ControllerContext) -> Result<(NodeFacts, WorkerObjects), ControllerError> {
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    let tombstones = Api::<Tombstone>::all(context.client.clone());
    let (peer, tombstone, identity) = futures::join!(
        call("read the peer", peers.get_opt(node)),
        call("read the tombstone", tombstones.get_opt(node)),
        identities::read(node, context),
    );
    let (peer, tombstone, identity) = (peer?, tombstone?, identity?);
    let addresses = |peer: &WireGuardPeer| {
        let given = peer.status.iter().flat_map(|status| &status.addresses);
        given.filter_map(|address| address.parse().ok()).collect()
    };
    let facts = NodeFacts {
        fault: context.configuration.check_node_name(node).err(),
        peer: peer.as_ref().map(addresses),
        tombstone: tombstone.is_some(),
        identity: identity.as_ref().map(|identity| identity.spec.clone()),
        now: now(),
        grace: identities::grace(context),
    };
    Ok((facts, WorkerObjects { peer, identity }))
}

/// Records the owner of a certificate before its approval. Returns false if too many certificates of that name are still valid.
async fn identify(
    node: &str,
    request: &Request,
    facts: &NodeFacts,
    known: &WorkerObjects,
    context: &ControllerContext,
) -> Result<bool, ControllerError> {
    let Ok(subject) = &request.subject else { return Ok(true) };
    let certificate = identities::pending_certificate(&subject.key, facts.now, context);
    let before = facts.identity.as_ref();
    let wanted = match (request.username.strip_prefix(BOOTSTRAP_USER), before) {
        (Some(token), _) => joined(before, Some(token.to_owned()), certificate, facts.now),
        (None, Some(before)) => renewed(before, certificate, facts.now),
        (None, None) => return Ok(true),
    };
    let Some(wanted) = wanted else { return Ok(false) };
    let had_peer = known.peer.is_some() || before.is_some_and(|before| before.peer.is_some());
    if request.username.starts_with(BOOTSTRAP_USER) && had_peer {
        // The previous worker of that name has just left, or its certificates have expired.
        let left = identities::node(node, context).await?;
        identities::remove(left.as_ref(), known.peer.as_ref(), context).await?;
    }
    identities::write(node, known.identity.as_ref(), wanted, context).await.map(|()| true)
}

async fn record(
    csr: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    if !write_approval(&context.client, csr, kind, reason, message).await? {
        return Ok(());
    }
    context.metrics.count_request(kind, reason);
    let severity = if kind == "Denied" { EventType::Warning } else { EventType::Normal };
    context.publish(csr, severity, reason, message).await;
    Ok(())
}
