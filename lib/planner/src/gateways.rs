//! Gateways: one beside each ingress, with its number and on its machine, as long as the ingress stays.

use alloc::{format, string::ToString, vec::Vec};

use keelway_api::{
    Component, Documents, Newer,
    component::{ComponentSpec, ComponentStage},
    name::{ClusterId, PodName},
    reserved,
    role::Role,
    validated::ValidatedCluster,
};

use crate::{
    ComponentRef, Decision, PassObservation, WaitBlocker,
    component_set::{self, are_colocated, of_role},
    fleet::FleetCapacity,
    placement_error::PlacementError,
    plan::Plan,
    retirement,
    versions::version_of_new,
};

/// Places a gateway beside each ingress without one, and removes those without an ingress.
pub(crate) fn plan_gateways(
    plan: &mut Plan,
    seen: &PassObservation,
    fleet: &mut FleetCapacity,
    (id, cluster): (&ClusterId, &ValidatedCluster),
) {
    let (lonely, beside) = partition_gateways(&plan.documents, id, cluster.vpn_enabled);
    for (pod, is_leaving) in lonely {
        let component = ComponentRef::of(&cluster.reference, &pod);
        let reason = if cluster.vpn_enabled { "its ingress is gone" } else { "the VPN of the cluster is disabled" };
        if !is_leaving {
            plan.decisions.push(Decision::RetireComponent { component, reason: reason.to_string() });
        }
        retirement::stop(plan, seen, fleet, cluster, &pod);
    }
    for (pod, _) in beside.into_iter().filter(|(_, is_leaving)| *is_leaving) {
        let component = ComponentRef::of(&cluster.reference, &pod);
        retirement::set_stage(plan, &pod, ComponentStage::Joining);
        plan.decisions.push(Decision::KeepComponent { component });
    }
    if !cluster.vpn_enabled {
        return;
    }
    for ingress in ingresses_without_gateway(&plan.documents, id) {
        let Ok(name) = Role::Gateway.component(ingress.index) else { continue };
        let pod = PodName { cluster: id.clone(), component: name };
        let component = ComponentRef::of(&cluster.reference, &pod);
        if plan.documents.components.contains_key(&pod) || fleet.is_released(id, Role::Gateway, ingress.index) {
            plan.wait_in_progress(component, WaitBlocker::PreviousGateway);
            continue;
        }
        match place(&plan.documents, fleet, cluster, &pod, &ingress) {
            Ok(document) => component_set::enter(plan, fleet, pod, document),
            Err(why) => plan.block(component, why),
        }
    }
}

/// A gateway, and whether it is leaving.
type GatewayLeaving = (PodName, bool);

/// Returns the gateways without a staying ingress, and the others. If the VPN is disabled, all gateways are among the first.
fn partition_gateways(
    documents: &Documents,
    id: &ClusterId,
    enabled: bool,
) -> (Vec<GatewayLeaving>, Vec<GatewayLeaving>) {
    let is_lonely = |(pod, _): &GatewayLeaving| {
        let gateway = documents.components.get(pod);
        !enabled || !staying(documents, id).any(|ingress| gateway.is_some_and(|own| are_colocated(ingress, &own.spec)))
    };
    let gateways = of_role(documents, id, Role::Gateway);
    gateways.map(|(pod, gateway)| (pod.clone(), gateway.is_leaving())).partition(is_lonely)
}

/// Staying ingresses without a gateway.
fn ingresses_without_gateway(documents: &Documents, id: &ClusterId) -> Vec<ComponentSpec> {
    let has_gateway = |ingress: &ComponentSpec| {
        of_role(documents, id, Role::Gateway).any(|(_, gateway)| are_colocated(&gateway.spec, ingress))
    };
    staying(documents, id).filter(|ingress| !has_gateway(ingress)).cloned().collect()
}

fn staying<'a>(documents: &'a Documents, id: &'a ClusterId) -> impl Iterator<Item = &'a ComponentSpec> {
    let stay = of_role(documents, id, Role::Ingress).filter(|(_, ingress)| !ingress.is_leaving());
    stay.map(|(_, ingress)| &ingress.spec)
}

fn place(
    documents: &Documents,
    fleet: &mut FleetCapacity,
    cluster: &ValidatedCluster,
    pod: &PodName,
    ingress: &ComponentSpec,
) -> Result<Component, PlacementError> {
    let machine = &ingress.hypervisor;
    if !cluster.vpn.iter().all(|range| reserved::of_gateway(range, ingress.index).is_some()) {
        return Err(PlacementError::NoVpnAddress);
    }
    let ports = fleet.ports_beside(Role::Gateway, machine)?;
    let brother = of_role(documents, &pod.cluster, Role::Gateway).map(|(_, gateway)| gateway.spec.user).next();
    let user = brother.or_else(|| fleet.take_user()).ok_or(PlacementError::NoUser)?;
    let spec = ComponentSpec {
        cluster: cluster.reference.clone(),
        cluster_id: pod.cluster.clone(),
        role: Role::Gateway,
        index: ingress.index,
        version: version_of_new(documents, (&pod.cluster, Role::Gateway), cluster),
        hypervisor: machine.clone(),
        ports,
        user,
        placement: format!("beside {}-{}", Role::Ingress, ingress.index),
        newer: Newer::default(),
    };
    Ok(component_set::document(pod, spec))
}
