//! The components of a cluster in the documents: queries, and adding one.

use alloc::string::ToString;

use keelway_api::{
    Component, Documents, ObjectMeta,
    component::ComponentSpec,
    machine::{CLUSTER_LABEL, COMPONENT_LABEL},
    name::{ClusterId, ClusterRef, PodName},
    role::Role,
};

use crate::{ComponentRef, Decision, fleet::FleetCapacity, plan::Plan};

/// Components of one role of a cluster, by name.
pub(crate) fn of_role<'a>(
    documents: &'a Documents,
    id: &'a ClusterId,
    role: Role,
) -> impl Iterator<Item = (&'a PodName, &'a Component)> {
    documents.components_of(id).filter(move |(_, component)| component.spec.role == role)
}

pub(crate) fn count_staying(documents: &Documents, id: &ClusterId, role: Role) -> usize {
    of_role(documents, id, role).filter(|(_, component)| !component.is_leaving()).count()
}

pub(crate) fn born(documents: &Documents, cluster: &ClusterRef) -> bool {
    let status = documents.clusters.get(cluster).and_then(|document| document.status.as_ref());
    status.is_some_and(|status| status.etcd.is_some())
}

/// Adds a new component to the plan and to its machine.
pub(crate) fn enter(plan: &mut Plan, fleet: &mut FleetCapacity, pod: PodName, document: Component) {
    fleet.enter(&document.spec);
    let ComponentSpec { cluster, hypervisor, placement, .. } = &document.spec;
    plan.decisions.push(Decision::PlaceComponent {
        component: ComponentRef::of(cluster, &pod),
        hypervisor: hypervisor.clone(),
        reason: placement.clone(),
    });
    plan.documents.components.insert(pod, document);
}

pub(crate) fn document(pod: &PodName, spec: ComponentSpec) -> Component {
    let labels = [(CLUSTER_LABEL, pod.cluster.as_str()), (COMPONENT_LABEL, pod.component.as_str())];
    let mut component = Component::new(pod.component.as_str(), spec);
    component.metadata = ObjectMeta {
        name: Some(pod.component.to_string()),
        namespace: Some(pod.cluster.namespace()),
        labels: Some(labels.map(|(key, value)| (key.to_string(), value.to_string())).into()),
        ..ObjectMeta::default()
    };
    component
}

/// Whether a gateway and an ingress are beside each other.
pub(crate) fn are_colocated(one: &ComponentSpec, other: &ComponentSpec) -> bool {
    (one.index, &one.hypervisor) == (other.index, &other.hypervisor)
}
