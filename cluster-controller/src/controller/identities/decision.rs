//! Which certificates are a worker's. Pure.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::worker::{ApprovedCertificate, CERTIFICATE_ID, CERTIFICATES, WorkerIdentitySpec};

/// For how long a name is kept for a key that was approved and whose worker has no peer yet: a join makes it as soon as it has the
/// certificate, for which it waits a minute.
const JOINING: SignedDuration = SignedDuration::from_mins(5);
/// How soon a certificate is known that was signed. One that is not known by then is known never: its request went while nobody looked.
const LEARNING: SignedDuration = SignedDuration::from_mins(1);

/// Whose a certificate is that a request came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateHolder {
    /// The worker's that has the name.
    Current,
    /// That of somebody who had the name before, or whom nobody approved.
    Former,
    /// One of which nothing is known yet may be it.
    Unknown,
}

/// Whose the certificate of this credential id is, with which something was asked that long ago.
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
        // All that others had is known, and this is none of it.
        CertificateHolder::Current
    }
}

fn lacks_id(certificates: &[ApprovedCertificate]) -> bool {
    certificates.iter().any(|one| one.id.is_none())
}

/// Whether the name is kept for another key: a worker that joins has not made its peer yet.
pub(crate) fn is_asked(identity: &WorkerIdentitySpec, key: &str, now: Timestamp) -> bool {
    let is_fresh = identity.approved.as_ref().is_some_and(|approved| now.duration_since(approved.0) < JOINING);
    let certificates = pruned(identity, now).certificates;
    let waits = identity.peer.is_none() && !certificates.is_empty();
    is_fresh && waits && certificates.iter().all(|one| one.key != key)
}

/// Without what has ended.
pub(crate) fn pruned(identity: &WorkerIdentitySpec, now: Timestamp) -> WorkerIdentitySpec {
    let mut identity = identity.clone();
    identity.certificates.retain(|one| one.until.0 > now);
    identity.revoked.retain(|one| one.until.0 > now);
    identity
}

/// A worker joins with a token: whoever had the name before has it no more. None: too many certificates of the name still hold.
pub(crate) fn joined(
    before: Option<&WorkerIdentitySpec>,
    token: Option<String>,
    certificate: ApprovedCertificate,
    now: Timestamp,
) -> Option<WorkerIdentitySpec> {
    let before = before.map(|before| pruned(before, now)).unwrap_or_default();
    // A join that was cut off goes on with its key.
    let is_same = before.peer.is_none() && before.certificates.iter().any(|one| one.key == certificate.key);
    let mut identity = if is_same { before } else { left(before) };
    identity.join_token = token;
    identity.approved = Some(Time(now));
    with(identity, certificate)
}

/// A worker renews. None: too many certificates of the name still hold.
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

/// A certificate was signed for a key that was approved.
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

/// Nobody has the name any more.
fn left(mut identity: WorkerIdentitySpec) -> WorkerIdentitySpec {
    identity.revoked.append(&mut identity.certificates);
    identity.peer = None;
    identity
}

/// What is done about an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdentityStep {
    /// It stays until something ends.
    Keep(Option<Time>),
    /// It is to be this.
    Write(WorkerIdentitySpec),
    /// Its worker has left: its Node goes, and it is to be this.
    Leave(WorkerIdentitySpec),
    /// No certificate of that name holds any more.
    Delete,
}

/// What is done about an identity whose peer, if there is one, has this uid.
pub(crate) fn step(identity: &WorkerIdentitySpec, peer: Option<&str>, now: Timestamp) -> IdentityStep {
    let next = pruned(identity, now);
    match (identity.peer.as_deref(), peer) {
        (Some(had), has) if has != Some(had) => return IdentityStep::Leave(left(next)),
        (None, Some(uid)) if !next.certificates.is_empty() => {
            return IdentityStep::Write(WorkerIdentitySpec { peer: Some(uid.to_owned()), ..next });
        }
        (None, None) if next.certificates.is_empty() && next.revoked.is_empty() => return IdentityStep::Delete,
        _ => {}
    }
    if next != *identity {
        return IdentityStep::Write(next);
    }
    IdentityStep::Keep(next.certificates.iter().chain(&next.revoked).map(|one| one.until.clone()).min())
}
