//! Which machine holds which component. A placed component never moves because a machine was added.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Component, Documents, ObjectMeta,
    component::ComponentSpec,
    machine::{CLUSTER_LABEL, COMPONENT_LABEL},
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    role::{API, Role},
    validated::{ValidatedCluster, ValidatedHypervisor},
};

use crate::{
    Decision, Observation,
    plan::Plan,
    ports::{self, Taken},
    world::World,
};

/// The first user id of components. Above every range that distributions give to people, services, containers and
/// `systemd-nspawn` ("Users, Groups, UIDs and GIDs on systemd Systems"), below 2^31.
const FIRST_USER: u32 = 1_900_000_000;
/// The last one: more than two hundred million roles of clusters.
const LAST_USER: u32 = 2_147_000_000;

/// Brings the Components of each cluster to the numbers that its document asks for.
pub(crate) fn plan_components(plan: &mut Plan, world: &World, seen: &Observation) {
    for (name, (id, cluster)) in &world.clusters {
        let Some(document) = plan.documents.clusters.get(name) else { continue };
        if document.deleted() {
            continue;
        }
        let spec = document.spec.clone();
        plan_ingress_port(plan, world, seen, name, spec.replicas(Role::Ingress));
        for role in Role::ALL {
            let wanted = spec.replicas(role);
            retire_surplus(plan, id, cluster, role, wanted);
            place_missing(plan, world, seen, (id, cluster), role, wanted);
        }
    }
}

/// Reserves the number that all ingresses of the cluster listen on, on every public machine that can be seen.
fn plan_ingress_port(plan: &mut Plan, world: &World, seen: &Observation, name: &ClusterRef, replicas: u32) {
    let has_one = plan
        .documents
        .clusters
        .get(name)
        .and_then(|cluster| cluster.status.as_ref())
        .is_some_and(|status| status.ingress_port.is_some());
    if has_one || replicas == 0 {
        return;
    }
    let machines: Vec<_> = world
        .with_role(Role::Ingress.row().runs_on)
        .filter_map(|machine| {
            let facts = &seen.machine(&machine.name)?.ports;
            Some((machine, Taken::on(machine, &plan.documents, facts)))
        })
        .collect();
    let port = ports::common(&machines);
    let Some(document) = plan.documents.clusters.get_mut(name) else { return };
    document.status.get_or_insert_default().ingress_port = port;
    if port.is_none() && !machines.is_empty() {
        plan.wait(&format!("{name}/ingress"), "a port that is free on every public hypervisor: widen spec.portRange");
    }
}

/// Takes away replicas above the wanted number. The members of a store are kept: its membership is not changed here.
fn retire_surplus(plan: &mut Plan, id: &ClusterId, cluster: &ValidatedCluster, role: Role, wanted: u32) {
    let surplus: Vec<PodName> = plan
        .documents
        .components_of(id)
        .filter(|(_, component)| component.spec.role == role && component.spec.index >= wanted)
        .map(|(pod, _)| pod.clone())
        .collect();
    for pod in surplus {
        let component = format!("{}/{}", cluster.reference, pod.component);
        if role == Role::Etcd {
            plan.wait(
                &component,
                "a smaller spec.etcd.replicas to be undone: members of a store that was born are not changed yet",
            );
            continue;
        }
        plan.documents.components.remove(&pod);
        plan.documents.secrets.remove(&keelway_api::documents::SecretName::of(id, pod.component.as_str()));
        plan.decisions.push(Decision::Retire { component, reason: format!("{wanted} of {role} are wanted") });
    }
}

/// Gives a machine to each replica that has none.
fn place_missing(
    plan: &mut Plan,
    world: &World,
    seen: &Observation,
    (id, cluster): (&ClusterId, &ValidatedCluster),
    role: Role,
    wanted: u32,
) {
    for index in 0..wanted {
        let Ok(name) = role.component(index) else { continue };
        let pod = PodName { cluster: id.clone(), component: name };
        if plan.documents.components.contains_key(&pod) {
            continue;
        }
        let component = format!("{}/{}", cluster.reference, pod.component);
        if role == Role::Etcd && born(&plan.documents, &cluster.reference) {
            plan.wait(
                &component,
                "a larger spec.etcd.replicas to be undone: members of a store that was born are not changed yet",
            );
            continue;
        }
        let placed = Choice::best(&plan.documents, world, seen, id, role).and_then(|choice| {
            let document = choice.component(&plan.documents, seen, &pod, cluster, role, index)?;
            Ok((choice, document))
        });
        match placed {
            Ok((choice, document)) => {
                plan.decisions.push(Decision::Place {
                    component,
                    hypervisor: choice.machine.name.clone(),
                    reason: choice.reason,
                });
                plan.documents.components.insert(pod, document);
            }
            Err(why) => plan.wait(&component, why),
        }
    }
}

fn born(documents: &Documents, cluster: &ClusterRef) -> bool {
    documents
        .clusters
        .get(cluster)
        .and_then(|document| document.status.as_ref())
        .is_some_and(|status| status.etcd.is_some())
}

/// A machine for one component, with the reason in words.
struct Choice<'a> {
    machine: &'a ValidatedHypervisor,
    reason: String,
}

/// How well a machine suits, best first: the order of the fields is the order of the rules.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score<'a> {
    same_role_on_machine: usize,
    without_api_server: bool,
    same_role_in_zone: usize,
    load: usize,
    name: &'a HypervisorName,
}

impl<'a> Choice<'a> {
    /// The best machine that can be seen: spread over machines and zones, then the least loaded, then by name.
    fn best(
        documents: &Documents,
        world: &'a World,
        seen: &Observation,
        id: &ClusterId,
        role: Role,
    ) -> Result<Self, String> {
        let wanted = role.row().runs_on;
        let ingress_port = ingress_port(documents, id);
        let candidates = world.with_role(wanted).filter(|machine| seen.machine(&machine.name).is_some());
        let usable = candidates.filter(|machine| {
            role != Role::Ingress || ingress_port.is_some_and(|port| !holds_port(documents, &machine.name, port))
        });
        usable
            .map(|machine| (Score::of(documents, world, machine, id, role), machine))
            .min_by(|(a, _), (b, _)| a.cmp(b))
            .map(|(score, machine)| Self { machine, reason: score.reason(role, machine) })
            .ok_or_else(|| {
                format!("a {wanted:?} hypervisor that answers and has room for it: add one with `keelway hypervisor`")
            })
    }

    /// The document of a component on this machine.
    fn component(
        &self,
        documents: &Documents,
        seen: &Observation,
        pod: &PodName,
        cluster: &ValidatedCluster,
        role: Role,
        index: u32,
    ) -> Result<Component, String> {
        let id = &pod.cluster;
        let ports = self.ports(documents, seen, id, role)?;
        let spec = ComponentSpec {
            cluster: cluster.reference.clone(),
            cluster_id: id.clone(),
            role,
            index,
            version: cluster.release.kubernetes.to_string(),
            hypervisor: self.machine.name.clone(),
            ports,
            user: user(documents, id, role),
        };
        let labels = [(CLUSTER_LABEL, id.as_str()), (COMPONENT_LABEL, pod.component.as_str())];
        let mut component = Component::new(pod.component.as_str(), spec);
        component.metadata = ObjectMeta {
            name: Some(pod.component.to_string()),
            namespace: Some(id.namespace()),
            labels: Some(labels.map(|(key, value)| (key.to_string(), value.to_string())).into()),
            ..ObjectMeta::default()
        };
        component.status.get_or_insert_default().placement.clone_from(&self.reason);
        Ok(component)
    }

    fn ports(
        &self,
        documents: &Documents,
        seen: &Observation,
        id: &ClusterId,
        role: Role,
    ) -> Result<BTreeMap<String, u16>, String> {
        let none = || format!("a free port in spec.portRange of {}: widen it", self.machine.name);
        if role == Role::Ingress {
            let port = ingress_port(documents, id).ok_or_else(none)?;
            return Ok([(API.to_string(), port)].into());
        }
        let facts = &seen.machine(&self.machine.name).ok_or_else(none)?.ports;
        let mut taken = Taken::on(self.machine, documents, facts);
        role.row()
            .ports
            .iter()
            .map(|name| Ok(((*name).to_string(), taken.take(self.machine).ok_or_else(none)?)))
            .collect()
    }
}

impl<'a> Score<'a> {
    fn of(documents: &Documents, world: &World, machine: &'a ValidatedHypervisor, id: &ClusterId, role: Role) -> Self {
        let of_cluster = || documents.components_of(id).map(|(_, component)| &component.spec);
        let same_role = || of_cluster().filter(|spec| spec.role == role);
        let zone_of = |name: &HypervisorName| world.machines.get(name).map(|machine| machine.zone.as_str());
        let follows = matches!(role, Role::KubeControllerManager | Role::KubeScheduler);
        let beside = of_cluster().any(|spec| spec.role == Role::KubeApiserver && spec.hypervisor == machine.name);
        Self {
            same_role_on_machine: same_role().filter(|spec| spec.hypervisor == machine.name).count(),
            without_api_server: follows && !beside,
            same_role_in_zone: same_role()
                .filter(|spec| zone_of(&spec.hypervisor) == Some(machine.zone.as_str()))
                .count(),
            load: documents.components.values().filter(|component| component.spec.hypervisor == machine.name).count(),
            name: &machine.name,
        }
    }

    fn reason(&self, role: Role, machine: &ValidatedHypervisor) -> String {
        let mut parts = Vec::new();
        match self.same_role_on_machine {
            0 => parts.push(format!("no other {role} of the cluster there")),
            others => parts.push(format!("{others} other {role} of the cluster there, as on every machine")),
        }
        if matches!(role, Role::KubeControllerManager | Role::KubeScheduler) && !self.without_api_server {
            parts.push("beside an API server".to_string());
        }
        if !machine.zone.is_empty() {
            parts.push(format!("{} in zone {}", self.same_role_in_zone, machine.zone));
        }
        parts.push(format!("{} component(s) on it", self.load));
        parts.join(", ")
    }
}

fn ingress_port(documents: &Documents, id: &ClusterId) -> Option<u16> {
    documents.clusters.values().find(|cluster| cluster.id() == Some(id))?.status.as_ref()?.ingress_port
}

fn holds_port(documents: &Documents, machine: &HypervisorName, port: u16) -> bool {
    documents.components.values().any(|component| {
        component.spec.hypervisor == *machine && component.spec.ports.values().any(|held| *held == port)
    })
}

/// The user of a role in a cluster: the one that it has, else the lowest that no component has.
fn user(documents: &Documents, id: &ClusterId, role: Role) -> u32 {
    let sibling = documents.components_of(id).find(|(_, component)| component.spec.role == role);
    sibling.map_or_else(
        || {
            let used: BTreeSet<u32> = documents.components.values().map(|component| component.spec.user).collect();
            (FIRST_USER..=LAST_USER).find(|user| !used.contains(user)).unwrap_or(LAST_USER)
        },
        |(_, component)| component.spec.user,
    )
}
