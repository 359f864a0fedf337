//! Authorities that have ended. Nothing that such an authority signed is valid any more, and it signs nothing. Its cluster reports that, and
//! all other clusters continue.

use alloc::{format, string::ToString, vec::Vec};

use keelway_api::{
    Time,
    condition::{self, ConditionStatus, reason::ConditionReason},
    documents::SecretName,
    jiff::Timestamp,
    name::{ClusterId, ClusterRef},
};

use crate::{
    PassObservation, WaitBlocker,
    plan::Plan,
    secret_names::{AUTHORITIES, PREVIOUS_AUTHORITY},
    verdict::verdict,
};

/// The name of the signing generation's certificate.
const ACTIVE: &str = "active";
/// The condition of a Cluster. It exists only while an authority has ended.
const VALID: &str = "AuthoritiesValid";

/// Reports each cluster with an authority that has ended.
pub(crate) fn plan_authorities(plan: &mut Plan, seen: &PassObservation, now: Timestamp) {
    let names: Vec<ClusterRef> = plan.documents.clusters.keys().cloned().collect();
    for name in names {
        let Some(cluster) = plan.documents.clusters.get(&name) else { continue };
        let Some(id) = cluster.id().filter(|_| !cluster.deleted()) else { continue };
        let with_end = |secret| Some((secret, ended(seen, id, secret, now)?));
        let ended: Vec<_> = AUTHORITIES.into_iter().filter_map(with_end).collect();
        let is_reported =
            cluster.status.as_ref().is_some_and(|status| status.conditions.iter().any(|one| one.type_ == VALID));
        // A document that does not change stays shared.
        if ended.is_empty() && !is_reported {
            continue;
        }
        let says = (!ended.is_empty()).then(|| {
            let blocker = WaitBlocker::ExpiredAuthorities(ended);
            let message = format!("waits for {blocker}");
            plan.block(&name, blocker);
            verdict(ConditionStatus::False, ConditionReason::AuthorityEnded, message)
        });
        let Some(cluster) = plan.documents.clusters.get_mut(&name) else { continue };
        let generation = cluster.metadata.generation;
        let conditions = &mut cluster.status.get_or_insert_default().conditions;
        condition::set_or_remove(conditions, VALID, says, generation, &Time(now));
    }
}

/// When the authority ended. None: it has not ended.
pub(crate) fn ended(seen: &PassObservation, id: &ClusterId, secret: &str, now: Timestamp) -> Option<Timestamp> {
    let found = seen.certificates.get(&(SecretName::of(id, secret), ACTIVE.to_string()))?;
    Some(found.not_after).filter(|end| *end <= now)
}

/// When the next authority ends.
pub(crate) fn next_end(seen: &PassObservation, now: Timestamp) -> Option<Timestamp> {
    // The previous generation of an authority may still sign for servers.
    let is_of_authority = |secret: &SecretName| AUTHORITIES.contains(&secret.name.as_str());
    let signs = seen
        .certificates
        .iter()
        .filter(|((secret, name), _)| name == ACTIVE || (name == PREVIOUS_AUTHORITY && is_of_authority(secret)));
    signs.map(|(_, found)| found.not_after).filter(|end| *end > now).min()
}
