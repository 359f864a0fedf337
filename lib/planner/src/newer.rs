//! Reports fields of documents that a newer release of Keelway wrote. They are kept and have no effect.

use alloc::{format, string::String, vec::Vec};

use keelway_api::{
    Cluster, Documents, Time,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    document::{DocumentName, DocumentRef},
    name::{ClusterRef, HypervisorName},
};

use crate::{plan::Plan, text::listed, verdict::verdict};

const KNOWN: &str = "FieldsKnown";

/// Reports the fields of each Cluster, its class and its Components on the Cluster.
pub(crate) fn report_of_clusters(plan: &mut Plan, now: &Time) {
    let all: Vec<ClusterRef> = plan.documents.clusters.keys().cloned().collect();
    for name in all {
        let Some(cluster) = plan.documents.clusters.get(&name) else { continue };
        let says = newer_fields_condition(&fields_of_cluster(&plan.documents, &name, cluster));
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        // A document that does not change stays shared.
        if says.is_none() && !condition::has(conditions, KNOWN) {
            continue;
        }
        let Some(cluster) = plan.documents.clusters.get_mut(&name) else { continue };
        let generation = cluster.metadata.generation;
        condition::set_or_remove(&mut cluster.status.get_or_insert_default().conditions, KNOWN, says, generation, now);
    }
}

/// Reports the fields of each Hypervisor.
pub(crate) fn report_of_machines(plan: &mut Plan, now: &Time) {
    let all: Vec<HypervisorName> = plan.documents.hypervisors.keys().cloned().collect();
    for name in all {
        let Some(machine) = plan.documents.hypervisors.get(&name) else { continue };
        let fields = DocumentRef::Hypervisor(machine).newer_fields();
        let says = newer_fields_condition(&titled(&DocumentName::Hypervisor(name.clone()), fields));
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        if says.is_none() && !condition::has(conditions, KNOWN) {
            continue;
        }
        let Some(machine) = plan.documents.hypervisors.get_mut(&name) else { continue };
        let generation = machine.metadata.generation;
        condition::set_or_remove(&mut machine.status.get_or_insert_default().conditions, KNOWN, says, generation, now);
    }
}

fn fields_of_cluster(documents: &Documents, name: &ClusterRef, cluster: &Cluster) -> Vec<String> {
    let own = DocumentName::Cluster(name.clone());
    let class =
        documents.class_of(cluster).and_then(|class| class.metadata.name.clone()).map(DocumentName::ClusterClass);
    let with_some =
        |pod| documents.components.get(pod).is_some_and(|one| DocumentRef::Component(one).has_newer_fields());
    let pods = cluster.id().into_iter().flat_map(|id| documents.components_of(id)).map(|(pod, _)| pod);
    let pods = pods.filter(|pod| with_some(pod)).cloned().map(DocumentName::Component);
    let all = core::iter::once(own).chain(class).chain(pods);
    all.flat_map(|name| titled(&name, documents.get(&name).map(DocumentRef::newer_fields).unwrap_or_default()))
        .collect()
}

fn titled(name: &DocumentName, fields: Vec<String>) -> Vec<String> {
    fields.into_iter().map(|field| format!("{field} of {name}")).collect()
}

fn newer_fields_condition(fields: &[String]) -> Option<ConditionValue> {
    let first = (!fields.is_empty()).then(|| listed(fields.iter()))?;
    let message = format!(
        "this release of Keelway does not know {first}: a newer release wrote them; they are kept, and have no effect"
    );
    Some(verdict(ConditionStatus::False, ConditionReason::NewerFields, message))
}
