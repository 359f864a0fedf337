//! Decides which certificates belong to a worker. Pure.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::worker::{ApprovedCertificate, CERTIFICATE_ID, CERTIFICATES, WorkerIdentitySpec};

/// How long a name is reserved for an approved key whose worker has no peer yet. A join creates the peer as soon as it has the certificate,
/// and waits a minute for the certificate.
const JOINING: SignedDuration = SignedDuration::from_mins(5);
/// How long it may take to record a signed certificate. After that it is never recorded: its request was deleted while no controller ran.
const LEARNING: SignedDuration = SignedDuration::from_mins(1);

/// The owner of the certificate that a requester used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateHolder {
    /// The worker that has the name now.
    Current,
    /// A worker that had the name before, or one that was never approved.
    Former,
    /// Unknown: it may be a certificate whose id is not recorded yet.
    Unknown,
}

/// Returns the owner of the certificate with this credential id. `age` is the age of the request.
pub(crate) fn holder(
    identity: &WorkerIdentitySpec,
    credential: Option<&str>,
    age: SignedDuration,
) -> CertificateHolder {
    let Some(id) = credential.and_then(|credential| credential.strip_prefix(CERTIFICATE_ID)) else {
        return CertificateHolder::Former;
    };
    let has = |list: &[ApprovedCertificate]| list.iter().any(|one| one.id.as_deref() == Some(id));
    if has(&identity.revoked) {
        CertificateHolder::Former
    } else if has(&identity.certificates) {
        CertificateHolder::Current
    } else if !lacks_id(&identity.certificates) {
        CertificateHolder::Former
    } else if age < LEARNING {
        CertificateHolder::Unknown
    } else if lacks_id(&identity.revoked) {
        CertificateHolder::Former
    } else {
        // The ids of all earlier workers are recorded, and this id is not among them.
        CertificateHolder::Current
    }
}

fn lacks_id(certificates: &[ApprovedCertificate]) -> bool {
    certificates.iter().any(|one| one.id.is_none())
}

/// Whether the name is reserved for another key, because a joining worker has not created its peer yet.
pub(crate) fn is_asked(identity: &WorkerIdentitySpec, key: &str, now: Timestamp) -> bool {
    let is_fresh = identity.approved.as_ref().is_some_and(|approved| now.duration_since(approved.0) < JOINING);
    let certificates = pruned(identity, now).certificates;
    let waits = identity.peer.is_none() && !certificates.is_empty();
    is_fresh && waits && certificates.iter().all(|one| one.key != key)
}

/// Returns the identity without expired certificates.
pub(crate) fn pruned(identity: &WorkerIdentitySpec, now: Timestamp) -> WorkerIdentitySpec {
    let mut identity = identity.clone();
    identity.certificates.retain(|one| one.until.0 > now);
    identity.revoked.retain(|one| one.until.0 > now);
    identity
}

/// Returns the identity without expired certificates, except that a worker with a peer keeps its last one for `grace` if none is valid: its key proves
/// the worker that renews it.
pub(crate) fn kept(identity: &WorkerIdentitySpec, now: Timestamp, grace: SignedDuration) -> WorkerIdentitySpec {
    let mut kept = pruned(identity, now);
    if kept.certificates.is_empty() && identity.peer.is_some() {
        let last = identity.certificates.iter().filter(|one| one.id.is_some()).max_by_key(|one| one.until.0);
        kept.certificates.extend(last.filter(|last| end(last, now, grace) > now).cloned());
    }
    kept
}

/// Returns when a certificate can no longer be used, not even to prove its key.
fn end(certificate: &ApprovedCertificate, now: Timestamp, grace: SignedDuration) -> Timestamp {
    let until = certificate.until.0;
    if until > now { until } else { until.saturating_add(grace).unwrap_or(Timestamp::MAX) }
}

/// Returns the identity after a join with a token. Earlier owners lose the name. `None` if too many certificates of the name are still valid.
pub(crate) fn joined(
    before: Option<&WorkerIdentitySpec>,
    token: Option<String>,
    certificate: ApprovedCertificate,
    now: Timestamp,
) -> Option<WorkerIdentitySpec> {
    let before = before.map(|before| pruned(before, now)).unwrap_or_default();
    // An interrupted join continues with its key.
    let is_same = before.peer.is_none() && before.certificates.iter().any(|one| one.key == certificate.key);
    let mut identity = if is_same { before } else { left(before) };
    identity.join_token = token;
    identity.approved = Some(Time(now));
    with(identity, certificate)
}

/// Returns the identity after a renewal. `None` if too many certificates of the name are still valid.
pub(crate) fn renewed(
    before: &WorkerIdentitySpec,
    certificate: ApprovedCertificate,
    now: Timestamp,
) -> Option<WorkerIdentitySpec> {
    with(pruned(before, now), certificate)
}

fn with(mut identity: WorkerIdentitySpec, certificate: ApprovedCertificate) -> Option<WorkerIdentitySpec> {
    identity.certificates.push(certificate);
    (identity.certificates.len() + identity.revoked.len() <= CERTIFICATES).then_some(identity)
}

/// Returns the identity with the id of a certificate that was signed for an approved key.
pub(crate) fn learned(before: &WorkerIdentitySpec, signed: &ApprovedCertificate) -> WorkerIdentitySpec {
    let mut identity = before.clone();
    for list in [&mut identity.certificates, &mut identity.revoked] {
        if list.iter().any(|one| one.id == signed.id) {
            break;
        }
        if let Some(one) = list.iter_mut().find(|one| one.key == signed.key && one.id.is_none()) {
            *one = signed.clone();
            break;
        }
    }
    identity
}

/// Returns the identity after its worker left: the name has no owner.
fn left(mut identity: WorkerIdentitySpec) -> WorkerIdentitySpec {
    identity.revoked.append(&mut identity.certificates);
    identity.peer = None;
    identity
}

/// The next step for an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdentityStep {
    /// Keep it until the first certificate expires, or can no longer prove its key.
    Keep(Option<Time>),
    /// Write this identity.
    Write(WorkerIdentitySpec),
    /// Delete the Node of its worker, which has left, and write this identity.
    Leave(WorkerIdentitySpec),
    /// Delete it, because all certificates of that name have expired.
    Delete,
}

/// Decides the next step for an identity. `peer` is the uid of the peer with its name.
pub(crate) fn step(
    identity: &WorkerIdentitySpec,
    peer: Option<&str>,
    now: Timestamp,
    grace: SignedDuration,
) -> IdentityStep {
    let next = kept(identity, now, grace);
    match (identity.peer.as_deref(), peer) {
        (Some(had), has) if has != Some(had) => return IdentityStep::Leave(left(pruned(identity, now))),
        (None, Some(uid)) if !next.certificates.is_empty() => {
            return IdentityStep::Write(WorkerIdentitySpec { peer: Some(uid.to_owned()), ..next });
        }
        (None, None) if next.certificates.is_empty() && next.revoked.is_empty() => return IdentityStep::Delete,
        _ => {}
    }
    if next != *identity {
        return IdentityStep::Write(next);
    }
    IdentityStep::Keep(next.certificates.iter().chain(&next.revoked).map(|one| Time(end(one, now, grace))).min())
}
