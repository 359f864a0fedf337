//! What clusters get from their classes.

use alloc::{string::ToString, vec::Vec};

use keelway_api::{
    Cluster, Documents, Time,
    class::ClassStatus,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    name::ClusterRef,
};

use crate::plan::Plan;

/// The condition of a Cluster that exceeds the limits of its class.
const WITHIN: &str = "WithinClass";

/// Records what each cluster gets from its class, so that the cluster keeps it if the class loses it. Reports each cluster that exceeds the
/// limits of its class. Such a cluster continues as before.
pub(crate) fn plan_classes(plan: &mut Plan, now: &Time) {
    let all: Vec<ClusterRef> = plan.documents.clusters.keys().cloned().collect();
    for name in all {
        let Some(cluster) = plan.documents.clusters.get(&name).filter(|cluster| !cluster.deleted()) else { continue };
        let class = class_status(&plan.documents, cluster);
        let says = class_violation(&plan.documents, cluster);
        // A document that does not change stays shared.
        if class.is_none() && says.is_none() && !is_told(cluster) {
            continue;
        }
        let Some(cluster) = plan.documents.clusters.get_mut(&name) else { continue };
        let generation = cluster.metadata.generation;
        let status = cluster.status.get_or_insert_default();
        if class.is_some() {
            status.class = class;
        }
        condition::set_or_remove(&mut status.conditions, WITHIN, says, generation, now);
    }
}

fn is_told(cluster: &Cluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice());
    conditions.unwrap_or_default().iter().any(|condition| condition.type_ == WITHIN)
}

/// What a cluster gets from its class. None: it is recorded already, or there is no class.
fn class_status(documents: &Documents, cluster: &Cluster) -> Option<ClassStatus> {
    let class = documents.class_of(cluster)?;
    let given = ClassStatus { name: class.metadata.name.clone()?, images: class.spec.images.clone() };
    let known = cluster.status.as_ref().and_then(|status| status.class.as_ref());
    (known != Some(&given)).then_some(given)
}

fn class_violation(documents: &Documents, cluster: &Cluster) -> Option<ConditionValue> {
    let faults = documents.faults_of_class(cluster);
    let message = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let reason = ConditionReason::BeyondClass.as_str().to_string();
    (!faults.is_empty()).then_some(ConditionValue { status: ConditionStatus::False, reason, message })
}
