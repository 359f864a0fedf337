//! The Components that each cluster needs. If a machine is added, placed components stay where they are.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use keelway_api::{
    Component, Documents, Newer,
    component::ComponentSpec,
    jiff::Timestamp,
    name::{ClusterId, ClusterRef, PodName},
    role::Role,
    validated::ValidatedCluster,
};

use crate::{
    ComponentRef, Decision, PassObservation, WaitBlocker, WaitSubject,
    component_set::{born, document, enter, of_role},
    enrollment,
    fleet::FleetCapacity,
    gateways,
    membership::{self, StoreContext},
    placement_choice::{Placement, PlacementRequest},
    placement_error::PlacementError,
    plan::{Plan, PlanScope},
    ports::IngressPort,
    retirement,
    versions::version_of_new,
    world::ValidatedDocuments,
};

/// Brings the Components of each cluster to the number of replicas in its document.
pub(crate) fn plan_components(
    plan: &mut Plan,
    world: &ValidatedDocuments,
    seen: &PassObservation,
    (part, now): (PlanScope<'_>, Timestamp),
) {
    let mut fleet = FleetCapacity::of(&plan.documents, part, world, seen);
    // A new cluster waits for them, so that it is spread over all machines.
    let starting = enrollment::first_starts(&plan.documents, seen);
    for (name, id, cluster) in world.reconciled_clusters() {
        let Some(document) = plan.documents.clusters.get(name) else { continue };
        if !document.is_awake() {
            continue;
        }
        if !starting.is_empty() && plan.documents.components_of(id).next().is_none() {
            plan.wait(name, WaitBlocker::StartingAgents(starting.clone()));
            continue;
        }
        let is_born = born(&plan.documents, name);
        let is_by_number = |role: &Role| *role != Role::Gateway && !(is_born && *role == Role::Etcd);
        let roles = Role::ALL.into_iter().filter(is_by_number);
        let wanted: Vec<_> = roles.map(|role| (role, document.spec.replicas(role))).collect();
        if document.spec.replicas(Role::Ingress) > 0 {
            plan_ingress_port(plan, &mut fleet, name);
        }
        retirement::note_ready(plan, seen, id);
        add_ports(plan, seen, &mut fleet, name, id);
        if is_born {
            membership::plan_members(plan, &mut fleet, StoreContext { world, seen, now, id, cluster });
        }
        for (role, wanted) in unfinished(&plan.documents, &fleet, id, wanted) {
            retirement::call_back(plan, (id, cluster), role, wanted);
            retirement::retire_surplus(plan, seen, &mut fleet, (id, cluster), role, wanted);
            place_missing(plan, world, &mut fleet, (id, cluster), role, wanted);
        }
        gateways::plan_gateways(plan, seen, &mut fleet, (id, cluster));
    }
}

/// Adds to components of an earlier release the ports that their roles have since this release. Their pods are replaced in turns.
fn add_ports(plan: &mut Plan, seen: &PassObservation, fleet: &mut FleetCapacity, cluster: &ClusterRef, id: &ClusterId) {
    let (mut given, mut waiting) = (Vec::new(), Vec::new());
    for (pod, component) in plan.documents.components_of_mut(id) {
        let spec = &component.spec;
        let added = spec.role.added_ports().iter().copied();
        let missing: Vec<&str> = added.filter(|name| !spec.ports.contains_key(*name)).collect();
        // If the machine was not observed, the ports in use there are unknown.
        if missing.is_empty() || seen.machine(&spec.hypervisor).is_none() {
            continue;
        }
        let name = ComponentRef::of(cluster, pod);
        match fleet.take_ports(&missing, &spec.hypervisor) {
            Ok(ports) => {
                given.push(Decision::AssignPorts { component: name, ports: ports.keys().cloned().collect() });
                component.spec.ports.extend(ports);
            }
            Err(on) => waiting.push((name, on)),
        }
    }
    plan.decisions.extend(given);
    for (component, on) in waiting {
        plan.block(component, on);
    }
}

/// Roles of a cluster that do not have exactly the wanted replicas, or have a replica that is leaving or has to move.
fn unfinished(
    documents: &Documents,
    fleet: &FleetCapacity,
    id: &ClusterId,
    wanted: Vec<(Role, u32)>,
) -> Vec<(Role, u32)> {
    let mut stay: BTreeMap<Role, u32> = BTreeMap::new();
    let mut change: BTreeSet<Role> = BTreeSet::new();
    for (_, component) in documents.components_of(id) {
        let role = component.spec.role;
        *stay.entry(role).or_default() += 1;
        if component.is_leaving() || retirement::must_move(fleet, &component.spec) {
            change.insert(role);
        }
    }
    let is_finished =
        |role: Role, wanted: u32| stay.get(&role).copied().unwrap_or_default() == wanted && !change.contains(&role);
    wanted.into_iter().filter(|(role, wanted)| !is_finished(*role, *wanted)).collect()
}

/// Reserves the port of all ingresses of the cluster on every public machine.
fn plan_ingress_port(plan: &mut Plan, fleet: &mut FleetCapacity, name: &ClusterRef) {
    if ingress_port(&plan.documents, name).is_some() {
        return;
    }
    let named = plan.documents.clusters.get(name).and_then(|cluster| cluster.spec.ingress.port);
    match fleet.reserve_ingress_port(named) {
        Ok(port) => {
            let Some(document) = plan.documents.clusters.get_mut(name) else { return };
            document.status.get_or_insert_default().ingress_port = Some(port);
        }
        Err(on) => plan.block(WaitSubject::Role(name.clone(), Role::Ingress), on),
    }
}

/// Places each missing replica on a machine, under the lowest free number.
fn place_missing(
    plan: &mut Plan,
    world: &ValidatedDocuments,
    fleet: &mut FleetCapacity,
    (id, cluster): (&ClusterId, &ValidatedCluster),
    role: Role,
    wanted: u32,
) {
    // Without a port no ingress can be placed, and the cluster already waits for the port.
    if role == Role::Ingress && ingress_port(&plan.documents, &cluster.reference).is_none() {
        return;
    }
    let placed = of_role(&plan.documents, id, role);
    let stay =
        placed.filter(|(_, component)| !component.is_leaving() && !retirement::must_move(fleet, &component.spec));
    let mut missing = (wanted as usize).saturating_sub(stay.count());
    // Skips names in use. There are at most as many of them as the cluster has components.
    for index in 0..=u32::MAX {
        if missing == 0 {
            return;
        }
        let Ok(name) = role.component(index) else { return };
        let pod = PodName { cluster: id.clone(), component: name };
        if plan.documents.components.contains_key(&pod) || fleet.is_released(id, role, index) {
            continue;
        }
        missing -= 1;
        let component = ComponentRef::of(&cluster.reference, &pod);
        match place(&plan.documents, world, fleet, cluster, (&pod, role, index)) {
            Ok(document) => enter(plan, fleet, pod, document),
            Err(why) => plan.block(component, why),
        }
    }
}

/// The document of a new component.
pub(crate) fn place(
    documents: &Documents,
    world: &ValidatedDocuments,
    fleet: &mut FleetCapacity,
    cluster: &ValidatedCluster,
    (pod, role, index): (&PodName, Role, u32),
) -> Result<Component, PlacementError> {
    let siblings: Vec<_> = documents.components_of(&pod.cluster).map(|(_, component)| &component.spec).collect();
    let brother = siblings.iter().find(|spec| spec.role == role).map(|spec| spec.user);
    let wanted = PlacementRequest {
        role,
        siblings,
        ingress_port: ingress_port(documents, &cluster.reference),
        machines: cluster.machines.as_ref(),
    };
    let Placement { machine, ports, reason } = Placement::best(fleet, world, &wanted)?;
    let user = brother.or_else(|| fleet.take_user()).ok_or(PlacementError::NoUser)?;
    let spec = ComponentSpec {
        cluster: cluster.reference.clone(),
        cluster_id: pod.cluster.clone(),
        role,
        index,
        version: version_of_new(documents, (&pod.cluster, role), cluster),
        hypervisor: machine.name.clone(),
        ports,
        user,
        placement: reason,
        newer: Newer::default(),
    };
    Ok(document(pod, spec))
}

fn ingress_port(documents: &Documents, cluster: &ClusterRef) -> Option<IngressPort> {
    let cluster = documents.clusters.get(cluster)?;
    let number = cluster.status.as_ref()?.ingress_port?;
    Some(IngressPort { number, is_named: cluster.spec.ingress.port == Some(number) })
}
