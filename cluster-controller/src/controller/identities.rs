//! Records the owner of each worker name: its token and its certificates.
//!
//! A name alone does not identify a worker, because certificates of earlier workers with that name may still be valid. The controller
//! therefore records what it approved for a name. A worker that renews must use a certificate of the current owner.

pub(super) mod decision;
#[cfg(test)]
mod tests;

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    api::{certificates::v1::CertificateSigningRequest, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::{
    machine::sha256_hex,
    worker::{ApprovedCertificate, WireGuardPeer, WorkerIdentity, WorkerIdentitySpec},
};
use keelway_component::{
    requests::{call, delete_precondition, ignore_conflict, only},
    watching::controller_of,
};
use keelway_pki::CertificateFacts;
use kube::{
    Api, Resource, ResourceExt,
    api::PostParams,
    core::ClusterResourceScope,
    runtime::{controller::Action, reflector::ObjectRef, watcher},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde::de::DeserializeOwned;

use self::decision::{IdentityStep, learned, step};
use super::{
    ControllerContext, ControllerError,
    context::{log_outcome, now, on_error},
};

/// The operation in errors of deletions of identities, Nodes and peers.
const DELETE: &str = "delete the objects of a worker that left";

/// Returns a certificate that is about to be approved for a key.
pub(super) fn pending_certificate(key: &[u8], now: Timestamp, context: &ControllerContext) -> ApprovedCertificate {
    let life =
        SignedDuration::try_from(Duration::from(context.configuration.worker_ttl)).unwrap_or(SignedDuration::MAX);
    let until = now.saturating_add(life).unwrap_or(Timestamp::MAX);
    ApprovedCertificate { key: sha256_hex(key), id: None, until: Time(until) }
}

/// Returns how long after its end a certificate proves its key.
pub(super) fn grace(context: &ControllerContext) -> SignedDuration {
    SignedDuration::try_from(Duration::from(context.configuration.worker_grace)).unwrap_or(SignedDuration::MAX)
}

pub(super) async fn read(node: &str, context: &ControllerContext) -> Result<Option<WorkerIdentity>, ControllerError> {
    Ok(call("read the worker's identity", api(context).get_opt(node)).await?)
}

/// Writes an identity. It fails if the identity changed since it was read.
pub(super) async fn write(
    node: &str,
    before: Option<&WorkerIdentity>,
    wanted: WorkerIdentitySpec,
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    let parameters = PostParams::default();
    let written = async {
        match before {
            Some(before) => {
                let identity = WorkerIdentity { spec: wanted, ..before.clone() };
                api(context).replace(node, &parameters, &identity).await
            }
            None => api(context).create(&parameters, &WorkerIdentity::new(node, wanted)).await,
        }
    };
    Ok(call("write the worker's identity", written).await.map(drop)?)
}

/// Records the id of a certificate after it was signed.
pub(super) async fn record_certificate_id(
    csr: &CertificateSigningRequest,
    node: &str,
    key: &[u8],
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    let Some(signed) = signed(csr, key) else { return Ok(()) };
    let Some(before) = read(node, context).await? else { return Ok(()) };
    let after = learned(&before.spec, &signed);
    if after == before.spec { Ok(()) } else { write(node, Some(&before), after, context).await }
}

fn signed(csr: &CertificateSigningRequest, key: &[u8]) -> Option<ApprovedCertificate> {
    let pem = &csr.status.as_ref()?.certificate.as_ref()?.0;
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    let facts = CertificateFacts::from_pem(std::str::from_utf8(pem).ok()?).ok()?;
    let until = Time(facts.validity.not_after());
    Some(ApprovedCertificate { key: sha256_hex(key), id: Some(sha256_hex(&certificate)), until })
}

fn api(context: &ControllerContext) -> Api<WorkerIdentity> {
    Api::all(context.client.clone())
}

/// Runs the controller of identities.
pub(super) async fn run(context: Arc<ControllerContext>) {
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    controller_of(api(&context))
        .watches(peers, watcher::Config::default(), |peer| Some(ObjectRef::new(&peer.name_any())))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("identities", outcome))
        .await;
}

async fn reconcile(identity: Arc<WorkerIdentity>, context: Arc<ControllerContext>) -> Result<Action, ControllerError> {
    let name = identity.name_any();
    // Read from the API server: the peer may be slightly newer than the event.
    let peers = Api::<WireGuardPeer>::all(context.client.clone());
    let peer = call("read the peer", peers.get_opt(&name)).await?;
    let now = now();
    let uid = peer.as_ref().and_then(|peer| peer.metadata.uid.as_deref());
    match step(&identity.spec, uid, now, grace(&context)) {
        IdentityStep::Keep(None) => {}
        IdentityStep::Keep(Some(until)) => {
            let left = Duration::try_from(until.0.duration_since(now)).unwrap_or_default();
            return Ok(Action::requeue(left + Duration::from_secs(1)));
        }
        IdentityStep::Write(wanted) => write(&name, Some(&identity), wanted, &context).await?,
        IdentityStep::Leave(wanted) => leave(&identity, peer.as_ref(), wanted, &context).await?,
        IdentityStep::Delete => {
            context.fence.check()?;
            let parameters = delete_precondition(&*identity);
            ignore_conflict(DELETE, api(&context).delete(&name, &parameters)).await?;
        }
    }
    Ok(Action::await_change())
}

/// Deletes the objects of a worker that left, but none of a new worker with that name that the watch may not have reported yet. The Node and
/// peer of a new worker are newer than the change of the identity at its approval. The identity is therefore read last.
async fn leave(
    identity: &WorkerIdentity,
    peer: Option<&WireGuardPeer>,
    wanted: WorkerIdentitySpec,
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    let name = identity.name_any();
    let node = node(&name, context).await?;
    let current = read(&name, context).await?;
    if current.is_none_or(|current| current.resource_version() != identity.resource_version()) {
        return Ok(());
    }
    remove(node.as_ref(), peer, context).await?;
    write(&name, Some(identity), wanted, context).await?;
    tracing::info!(worker = name, "a worker left; revoked its certificates");
    Ok(())
}

pub(super) async fn node(name: &str, context: &ControllerContext) -> Result<Option<Node>, ControllerError> {
    Ok(call("read the Node", Api::all(context.client.clone()).get_opt(name)).await?)
}

/// Deletes the objects of a worker that left: its Node, and a peer that it created again.
pub(super) async fn remove(
    node: Option<&Node>,
    peer: Option<&WireGuardPeer>,
    context: &ControllerContext,
) -> Result<(), ControllerError> {
    context.fence.check()?;
    if let Some(node) = node {
        delete(node, context).await?;
    }
    if let Some(peer) = peer {
        delete(peer, context).await?;
    }
    Ok(())
}

/// Deletes this object, and no other one of the same name.
async fn delete<K>(this: &K, context: &ControllerContext) -> Result<(), ControllerError>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api = Api::<K>::all(context.client.clone());
    Ok(ignore_conflict(DELETE, api.delete(&this.name_any(), &only(this))).await.map(drop)?)
}
