//! Workers while the authority is rotated that signs their certificates. Each of them reports on its Node what it trusts and uses.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Time,
    documents::SecretName,
    jiff::SignedDuration,
    machine::{ObservedValue, hex, sha256_hex},
    rotation::{KeyRotation, RotatedKey, RotationPhase, RotationRequest},
};

use super::{RotationBlocker, RotationPace, RotationStep};
use crate::{
    PassObservation, WaitKind, WorkerTrust,
    secret_names::{AUTHORITY, KUBERNETES},
    tenant::Tenant,
};

/// How long each phase of an immediate rotation waits for workers while others follow. A worker follows within half a minute, once components were replaced.
const IMMEDIATE_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// Whether a pass needs to know what the workers of the cluster trust.
#[must_use]
pub fn follows_workers(cluster: &Cluster) -> bool {
    let key = RotatedKey::KubernetesAuthority;
    let is_complete = || cluster.spec.rotations.request(key).is_some_and(RotationRequest::is_complete);
    cluster.running_rotation(key).filter(|_| cluster.is_changeable()).is_some_and(|rotation| match rotation.phase {
        RotationPhase::Announcing | RotationPhase::Activating | RotationPhase::Retiring => true,
        RotationPhase::Prepared => is_complete(),
        RotationPhase::Reencrypting | RotationPhase::Completed => false,
    })
}

/// What workers have to report before a phase ends.
struct ConfirmedTrust {
    trusted: String,
    /// None: the phase does not depend on it.
    issuers: Option<String>,
}

impl ConfirmedTrust {
    fn of(tenant: &Tenant, seen: &PassObservation, phase: RotationPhase) -> Self {
        let bundle = tenant.value(KUBERNETES, "bundle.crt").unwrap_or_default();
        let active = || seen.certificates.get(&(SecretName::of(tenant.id, KUBERNETES), AUTHORITY.to_string()));
        let issuer = || active().and_then(|active| active.key_id.as_deref()).unwrap_or_default();
        let issuers = (phase != RotationPhase::Announcing).then(|| hex(issuer()));
        Self { trusted: sha256_hex(bundle), issuers }
    }

    fn is_of(&self, worker: &WorkerTrust) -> bool {
        let has_trust = worker.trusted.as_ref() == Some(&self.trusted);
        has_trust && self.issuers.as_ref().is_none_or(|issuers| worker.issuers.as_ref() == Some(issuers))
    }
}

/// Waits for workers that have not confirmed what the phase requires.
pub(super) fn unconfirmed(
    tenant: &Tenant,
    seen: &PassObservation,
    (rotation, pace): (&KeyRotation, RotationPace),
    now: &Time,
) -> Option<RotationStep> {
    let unknown = |why: &str| {
        let blocker = RotationBlocker::WorkersUnknown(why.to_string());
        Some(RotationStep::Wait(WaitKind::InProgress, blocker))
    };
    let workers = match seen.workers.get(tenant.id) {
        None => return unknown("it was not asked yet"),
        Some(ObservedValue::Unreachable { why, .. }) => return unknown(why),
        Some(ObservedValue::Known(workers)) => workers,
    };
    let phase = rotation.phase;
    let wanted = ConfirmedTrust::of(tenant, seen, phase);
    let (confirmed, others): (Vec<&WorkerTrust>, Vec<&WorkerTrust>) =
        workers.iter().partition(|worker| wanted.is_of(worker));
    // If no worker follows, the components that workers follow may be those that do not respond.
    let has_passed = now.0.duration_since(rotation.since.0) >= IMMEDIATE_WAIT && !confirmed.is_empty();
    if pace == RotationPace::Immediate && has_passed {
        return None;
    }
    let those = |is_one: &dyn Fn(&WorkerTrust) -> bool| -> Option<Vec<String>> {
        let names: Vec<String> =
            others.iter().filter(|worker| is_one(worker)).map(|worker| worker.name.clone()).collect();
        (!names.is_empty()).then_some(names)
    };
    if let Some(names) = those(&|worker| worker.is_ready && worker.trusted.is_some()) {
        return Some(RotationStep::Wait(WaitKind::InProgress, RotationBlocker::Workers { names, phase }));
    }
    if pace == RotationPace::Immediate {
        return None;
    }
    if let Some(names) = those(&|worker| worker.is_ready) {
        return Some(RotationStep::Wait(WaitKind::Blocked, RotationBlocker::SilentWorkers(names)));
    }
    // A worker that has certificates of the new authority reads the last bundle when it returns.
    let deadline = deadline(tenant, rotation).filter(|until| phase != RotationPhase::Retiring && now.0 < until.0)?;
    let names = those(&|_| true)?;
    Some(RotationStep::Wait(WaitKind::Blocked, RotationBlocker::AbsentWorkers { names, until: deadline }))
}

/// The workers that have not confirmed what a phase requires.
pub(super) fn left_behind(tenant: &Tenant, seen: &PassObservation, phase: RotationPhase) -> Vec<String> {
    let workers = seen.workers.get(tenant.id).and_then(ObservedValue::known).into_iter().flatten();
    let wanted = ConfirmedTrust::of(tenant, seen, phase);
    // A worker with certificates of the new authority reads the last bundle later.
    let follows = |worker: &WorkerTrust| {
        wanted.is_of(worker)
            || (phase == RotationPhase::Retiring && wanted.issuers.is_some() && worker.issuers == wanted.issuers)
    };
    workers.filter(|worker| !follows(worker)).map(|worker| worker.name.clone()).collect()
}

/// When a phase ends although workers are away.
fn deadline(tenant: &Tenant, rotation: &KeyRotation) -> Option<Time> {
    let seconds = i64::try_from(tenant.cluster.certificates.rotation_deadline.seconds()).ok()?;
    rotation.since.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Time)
}
