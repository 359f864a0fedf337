//! The condition of a Cluster whose keys are rotated.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use keelway_api::{
    Cluster, Documents, Time,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    jiff::SignedDuration,
    name::ClusterRef,
    rotation::{RotatedKey, RotationPhase},
};

use crate::{plan::Plan, text::joined, verdict::verdict};

/// The condition of a Cluster. It exists only while a key is rotated.
const ROTATING: &str = "KeysRotating";

/// What each rotation does or waits for.
pub(super) type RotationTexts<'a> = BTreeMap<(&'a ClusterRef, RotatedKey), String>;

/// Reports each cluster with a rotation that runs.
pub(super) fn report(plan: &mut Plan, blocked: &RotationTexts, now: &Time) {
    let Documents { clusters, .. } = &mut plan.documents;
    let names: Vec<ClusterRef> = clusters.keys().cloned().collect();
    for name in names {
        let Some(cluster) = clusters.get(&name).filter(|cluster| !cluster.spec.paused) else { continue };
        let says = progress(cluster, &name, blocked);
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        // A document that does not change stays shared.
        if says.is_none() && !condition::has(conditions, ROTATING) {
            continue;
        }
        let Some(cluster) = clusters.get_mut(&name) else { continue };
        let generation = cluster.metadata.generation;
        let conditions = &mut cluster.status.get_or_insert_default().conditions;
        condition::set_or_remove(conditions, ROTATING, says, generation, now);
    }
}

/// Kubeconfigs that `keelway` wrote before the new authority was in use end by themselves.
fn kubeconfigs(cluster: &Cluster, key: RotatedKey) -> String {
    let ttl = i64::try_from(cluster.spec.certificates.admin_ttl.seconds()).ok().map(SignedDuration::from_secs);
    let prepared = cluster.running_rotation(key).filter(|_| key == RotatedKey::KubernetesAuthority);
    let last = prepared.zip(ttl).and_then(|(rotation, ttl)| rotation.since.0.checked_add(ttl).ok());
    last.map(|last| format!("; kubeconfigs from before with the lifetime spec.certificates.adminTTL expire by {last}"))
        .unwrap_or_default()
}

fn progress(cluster: &Cluster, name: &ClusterRef, blocked: &RotationTexts) -> Option<ConditionValue> {
    let running = |key: RotatedKey| Some((key, cluster.running_rotation(key)?.phase));
    let running: Vec<(RotatedKey, RotationPhase)> = RotatedKey::ALL.into_iter().filter_map(running).collect();
    let texts = running.iter().map(|(key, phase)| match (blocked.get(&(name, *key)), phase) {
        (Some(text), _) => format!("{} is {phase}: {text}", key.field()),
        (None, RotationPhase::Prepared) => format!(
            "{} is {phase}: `keelway cluster rotate --name {} {} --complete` removes the previous key{}",
            key.field(),
            name.name,
            key.flag(),
            kubeconfigs(cluster, *key)
        ),
        (None, _) => format!("{} is {phase}", key.field()),
    });
    let message = joined(texts, "; ");
    let reason = match running.iter().map(|(_, phase)| *phase).collect::<Vec<_>>().as_slice() {
        [] => return None,
        phases if phases.iter().all(|phase| *phase == RotationPhase::Prepared) => ConditionReason::RotationPrepared,
        _ => ConditionReason::RotationInProgress,
    };
    Some(verdict(ConditionStatus::True, reason, message))
}
