//! Upgrades of Keelway's own components in clusters whose wave has begun.

use alloc::{borrow::ToOwned, format, vec::Vec};

use keelway_api::{
    Cluster, Time,
    cluster::KeelwayStatus,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    name::ClusterRef,
    release::KEELWAY,
};

use crate::{
    plan::{Decision, Plan, PlanScope},
    verdict::verdict,
    waves::{UP_TO_DATE, Waves, is_upgrading},
};

/// Upgrades clusters whose wave has begun to this release. A single pass over all documents, as on a pipe, upgrades all clusters.
pub(crate) fn plan_waves(plan: &mut Plan, part: PlanScope<'_>, now: &Time) {
    let open = match part {
        PlanScope::All => None,
        PlanScope::Cluster(neighbours) => Some(neighbours),
        PlanScope::Machines(_) => return,
    };
    let behind = plan.documents.clusters.iter().filter(|(_, cluster)| Waves::awaits(cluster));
    let behind: Vec<ClusterRef> = behind.map(|(name, _)| name.clone()).collect();
    if behind.is_empty() {
        return;
    }
    let open = open.map(|neighbours| neighbours.waves.open(neighbours.documents));
    for name in behind {
        let is_open = open.as_ref().is_none_or(|open| open.contains(&name));
        let Some(cluster) = plan.documents.clusters.get_mut(&name) else { continue };
        let (from, generation) = (cluster.keelway_version().to_owned(), cluster.metadata.generation);
        let status = cluster.status.get_or_insert_default();
        let says = if is_open {
            status.keelway = Some(KeelwayStatus { version: KEELWAY.to_owned(), previous_version: Some(from.clone()) });
            upgrading(&from)
        } else {
            awaits_wave(&from)
        };
        condition::set(&mut status.conditions, UP_TO_DATE, says, generation, now);
        if is_open {
            plan.decisions.push(Decision::UpgradeKeelway { cluster: name, from, to: KEELWAY.to_owned() });
        }
    }
}

/// Removes the condition of a cluster that runs this release and waits for nothing of it. A paused cluster keeps it.
pub(crate) fn note_upgraded(cluster: &mut Cluster) {
    if is_upgrading(cluster) && !cluster.spec.paused {
        let status = cluster.status.get_or_insert_default();
        status.conditions.retain(|found| found.type_ != UP_TO_DATE);
    }
}

fn upgrading(from: &str) -> ConditionValue {
    let message = format!(
        "Keelway's components of the cluster are upgraded from {from} to {KEELWAY}, one at a time; the next wave of \
         clusters begins once they are upgraded and the cluster is available and not degraded"
    );
    verdict(ConditionStatus::False, ConditionReason::Upgrading, message)
}

fn awaits_wave(from: &str) -> ConditionValue {
    let message = format!(
        "Keelway's components of the cluster run {from}; they are upgraded to {KEELWAY} in a later wave, once the \
         clusters of earlier waves run it and are healthy"
    );
    verdict(ConditionStatus::False, ConditionReason::AwaitsWave, message)
}
