//! Chooses the machine for one component, with the reason.

use alloc::{
    boxed::Box,
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    LabelSelector, class::selects, component::ComponentSpec, name::HypervisorName, role::Role,
    validated::ValidatedHypervisor,
};

use crate::{
    fleet::{FleetCapacity, Room},
    placement_error::{MissingMachine, PlacementError, RemainingCapacity},
    ports::IngressPort,
    text::count,
    world::ValidatedDocuments,
};

/// A machine for one component, with the reason as text.
pub(crate) struct Placement<'a> {
    pub(crate) machine: &'a ValidatedHypervisor,
    pub(crate) ports: alloc::collections::BTreeMap<String, u16>,
    pub(crate) reason: String,
}

pub(crate) struct PlacementRequest<'a> {
    pub(crate) role: Role,
    /// The components that the cluster already has.
    pub(crate) siblings: Vec<&'a ComponentSpec>,
    /// The port of the cluster's ingresses.
    pub(crate) ingress_port: Option<IngressPort>,
    /// The machines that the cluster's class selects. None: the class is missing.
    pub(crate) machines: Option<&'a LabelSelector>,
}

/// How well a machine suits. The lowest score is the best. The order of the fields is the order of the rules.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score<'a> {
    same_role_on_machine: usize,
    without_api_server: bool,
    same_role_in_zone: usize,
    load: usize,
    name: &'a HypervisorName,
}

impl<'a> Placement<'a> {
    /// The best machine that responds and has room: spread over machines and zones, then the least loaded, then by name.
    pub(crate) fn best(
        fleet: &FleetCapacity<'a>,
        world: &ValidatedDocuments,
        wanted: &PlacementRequest,
    ) -> Result<Self, PlacementError> {
        let role = wanted.role;
        let of_cluster: BTreeSet<&HypervisorName> = wanted.siblings.iter().map(|spec| &spec.hypervisor).collect();
        fleet
            .candidates(role.row().runs_on, &of_cluster, |room| {
                wanted.may_be_on(room) && room.holds(role) && room.ports_for(role, wanted.ingress_port).is_some()
            })
            .map(|room| (Score::of(room, world, wanted), room))
            .min_by(|(a, _), (b, _)| a.cmp(b))
            .and_then(|(score, room)| {
                let ports = room.ports_for(role, wanted.ingress_port)?;
                Some(Self { machine: room.machine, ports, reason: score.reason(role, room.machine) })
            })
            .ok_or_else(|| wanted.missing(fleet))
    }
}

impl PlacementRequest<'_> {
    /// Whether the cluster's class selects the machine.
    fn may_be_on(&self, room: &Room) -> bool {
        self.machines.is_some_and(|machines| selects(machines, &room.machine.labels))
    }

    /// Whether a component of the same role and cluster is on a machine.
    fn has_one_on(&self, machine: &HypervisorName) -> bool {
        self.siblings.iter().any(|spec| spec.role == self.role && spec.hypervisor == *machine)
    }

    /// What the component waits for.
    fn missing(&self, fleet: &FleetCapacity) -> PlacementError {
        if self.machines.is_none() {
            return PlacementError::NoClass;
        }
        let kind = self.role.row().runs_on;
        let of_class = || fleet.of_kind(kind).filter(|(room, _)| self.may_be_on(room));
        let open = || of_class().filter(|(_, open)| *open).map(|(room, _)| room);
        let name = |room: &Room| room.machine.name.clone();
        // If an ingress of the same cluster is on the machine, it is the one that uses the port.
        let is_taken = |room: &&Room| {
            room.lacks_ports(self.role, self.ingress_port)
                && !(self.role == Role::Ingress && self.has_one_on(&room.machine.name))
        };
        let is_privileged = |room: &&Room| self.ingress_port.is_some_and(|port| room.ports.is_privileged(port.number));
        let full = open().filter(|room| !room.holds(self.role));
        PlacementError::NoMachine(Box::new(MissingMachine {
            role: self.role,
            ingress_port: self.ingress_port.map(|port| port.number),
            is_selected: of_class().count() < fleet.of_kind(kind).count(),
            full: full.filter_map(|room| Some(RemainingCapacity { machine: name(room), left: room.left? })).collect(),
            without_ports: open().filter(|room| is_taken(room) && !is_privileged(room)).map(name).collect(),
            privileged: open().filter(is_privileged).map(name).collect(),
            closed: of_class().filter(|(room, _)| !room.machine.schedulable).map(|(room, _)| name(room)).collect(),
            without_disk: of_class().filter(|(room, _)| room.disk_pressure).map(|(room, _)| name(room)).collect(),
        }))
    }
}

impl<'a> Score<'a> {
    fn of<'b: 'a>(room: &Room<'b>, world: &ValidatedDocuments, wanted: &PlacementRequest) -> Self {
        let machine = room.machine;
        let on_machine = |role: Role| {
            let of_role = wanted.siblings.iter().filter(move |spec| spec.role == role);
            of_role.filter(|spec| spec.hypervisor == machine.name).count()
        };
        let in_zone = |spec: &&&ComponentSpec| {
            world.machines.get(&spec.hypervisor).is_some_and(|other| other.zone == machine.zone)
        };
        let same_role = wanted.siblings.iter().filter(|spec| spec.role == wanted.role);
        Self {
            same_role_on_machine: on_machine(wanted.role),
            without_api_server: follows(wanted.role) && on_machine(Role::KubeApiserver) == 0,
            same_role_in_zone: same_role.filter(in_zone).count(),
            load: room.load,
            name: &machine.name,
        }
    }

    fn reason(&self, role: Role, machine: &ValidatedHypervisor) -> String {
        let mut parts = Vec::new();
        match self.same_role_on_machine {
            0 => parts.push(format!("no other {role} of the cluster on it")),
            others => {
                parts.push(format!("{others} other {role} of the cluster on it, and no fewer where there is room"));
            }
        }
        if follows(role) && !self.without_api_server {
            parts.push("beside an API server".to_string());
        }
        if !machine.zone.is_empty() {
            parts.push(format!("{} in zone {}", none_or(self.same_role_in_zone), machine.zone));
        }
        parts.push(format!("{} on it before", count(self.load, "component")));
        parts.join(", ")
    }
}

fn none_or(number: usize) -> String {
    if number == 0 { "none".to_string() } else { number.to_string() }
}

/// Whether components of a role are placed beside an API server of their cluster if possible.
fn follows(role: Role) -> bool {
    matches!(role, Role::KubeControllerManager | Role::KubeScheduler | Role::ClusterController | Role::FleetController)
}
