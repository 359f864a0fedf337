//! Workers and fleet agents while the authority is rotated that signs their certificates. A worker reports on its Node what it trusts and uses, and the
//! agent of a fleet on its Lease.

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

use super::{RotationBlocker, RotationPace, RotationStep, TrustHolder};
use crate::{
    ObservedTrust, PassObservation, WaitKind,
    secret_names::{AUTHORITY, KUBERNETES},
    tenant::Tenant,
};

/// How long each phase of an immediate rotation waits for holders while others follow. One follows within half a minute, once components were replaced.
const IMMEDIATE_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// Whether a pass needs to know what the workers of the cluster, or the agents of the fleet, trust.
#[must_use]
pub fn follows_trust(cluster: &Cluster) -> bool {
    let key = RotatedKey::KubernetesAuthority;
    let is_complete = || cluster.spec.rotations.request(key).is_some_and(RotationRequest::is_complete);
    cluster.running_rotation(key).filter(|_| cluster.is_changeable()).is_some_and(|rotation| match rotation.phase {
        RotationPhase::Announcing | RotationPhase::Activating | RotationPhase::Retiring => true,
        RotationPhase::Prepared => is_complete(),
        RotationPhase::Reencrypting | RotationPhase::Completed => false,
    })
}

/// What has to be reported before a phase ends.
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

    fn is_of(&self, report: &ObservedTrust) -> bool {
        let has_trust = report.trusted.as_ref() == Some(&self.trusted);
        has_trust && self.issuers.as_ref().is_none_or(|issuers| report.issuers.as_ref() == Some(issuers))
    }
}

/// Waits for those that have not confirmed what the phase requires.
pub(super) fn unconfirmed(
    tenant: &Tenant,
    seen: &PassObservation,
    (rotation, pace): (&KeyRotation, RotationPace),
    now: &Time,
) -> Option<RotationStep> {
    let holder = TrustHolder::of(tenant.document);
    let unknown = |why: &str| {
        let blocker = RotationBlocker::UnknownTrust { holder, why: why.to_string() };
        Some(RotationStep::Wait(WaitKind::InProgress, blocker))
    };
    let reports = match seen.trust.get(tenant.id) {
        None => return unknown("it was not asked yet"),
        Some(ObservedValue::Unreachable { why, .. }) => return unknown(why),
        Some(ObservedValue::Known(reports)) => reports,
    };
    let phase = rotation.phase;
    let wanted = ConfirmedTrust::of(tenant, seen, phase);
    let (confirmed, others): (Vec<&ObservedTrust>, Vec<&ObservedTrust>) =
        reports.iter().partition(|report| wanted.is_of(report));
    // If none follows, the components that they follow may be those that do not respond.
    let has_passed = now.0.duration_since(rotation.since.0) >= IMMEDIATE_WAIT && !confirmed.is_empty();
    if pace == RotationPace::Immediate && has_passed {
        return None;
    }
    let those = |is_one: &dyn Fn(&ObservedTrust) -> bool| -> Option<Vec<String>> {
        let names: Vec<String> =
            others.iter().filter(|report| is_one(report)).map(|report| report.name.clone()).collect();
        (!names.is_empty()).then_some(names)
    };
    if let Some(names) = those(&|report| report.is_ready && report.trusted.is_some()) {
        return Some(RotationStep::Wait(WaitKind::InProgress, RotationBlocker::Trust { holder, names, phase }));
    }
    if pace == RotationPace::Immediate {
        return None;
    }
    if let Some(names) = those(&|report| report.is_ready) {
        return Some(RotationStep::Wait(WaitKind::Blocked, RotationBlocker::SilentTrust { holder, names }));
    }
    // One that has certificates of the new authority reads the last bundle when it returns.
    let deadline = deadline(tenant, rotation).filter(|until| phase != RotationPhase::Retiring && now.0 < until.0)?;
    let names = those(&|_| true)?;
    Some(RotationStep::Wait(WaitKind::Blocked, RotationBlocker::AbsentTrust { holder, names, until: deadline }))
}

/// The workers or agents that have not confirmed what a phase requires, for people.
pub(super) fn left_behind(tenant: &Tenant, seen: &PassObservation, phase: RotationPhase) -> Vec<String> {
    let reports = seen.trust.get(tenant.id).and_then(ObservedValue::known).into_iter().flatten();
    let wanted = ConfirmedTrust::of(tenant, seen, phase);
    // One with certificates of the new authority reads the last bundle later.
    let follows = |report: &ObservedTrust| {
        wanted.is_of(report)
            || (phase == RotationPhase::Retiring && wanted.issuers.is_some() && report.issuers == wanted.issuers)
    };
    let holder = TrustHolder::of(tenant.document);
    reports.filter(|report| !follows(report)).map(|report| holder.named(&report.name)).collect()
}

/// When a phase ends although some are away.
fn deadline(tenant: &Tenant, rotation: &KeyRotation) -> Option<Time> {
    let seconds = i64::try_from(tenant.cluster.certificates.rotation_deadline.seconds()).ok()?;
    rotation.since.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Time)
}
