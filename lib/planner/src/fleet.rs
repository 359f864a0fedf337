//! The free capacity of the machines, which is updated while components are placed.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
};

use keelway_api::{
    Cluster, Component, Documents,
    component::ComponentSpec,
    hypervisor::HypervisorRole,
    machine::{Amount, PortFacts},
    name::{ClusterId, HypervisorName},
    role::{API, Role},
    validated::ValidatedHypervisor,
};

use crate::{
    PassObservation,
    placement_error::{PlacementError, Shortened},
    plan::{Neighbours, PlanScope},
    ports::{self, IngressPort, IngressPorts, Ports},
    world::ValidatedDocuments,
};

/// The first user id of components. It is above every range that distributions assign to people, services, containers and
/// `systemd-nspawn` ("Users, Groups, UIDs and GIDs on systemd Systems"), and below 2^31.
const FIRST_USER: u32 = 1_900_000_000;
/// The last user id of components. The range is enough for more than two hundred million roles of clusters.
const LAST_USER: u32 = 2_147_000_000;

/// The machines and their free capacity.
///
/// What a component releases is assigned by a later plan only, because the component's process may not have ended yet.
pub(crate) struct FleetCapacity<'a> {
    rooms: BTreeMap<&'a HypervisorName, Room<'a>>,
    /// Names of the machines that respond and accept components, by kind and zone, the least loaded first.
    order: BTreeMap<(HypervisorRole, &'a str), BTreeSet<(usize, &'a HypervisorName)>>,
    ingress: IngressPorts,
    users: BTreeSet<u32>,
    /// All user ids below this one are in use.
    next_user: u32,
    /// Names of components that left in this plan. A component with the same name on another machine would look as if it had moved.
    given_back: BTreeSet<(ClusterId, Role, u32)>,
}

/// The clusters that the plan does not cover.
struct OtherClusters<'a> {
    /// The clusters that the plan covers.
    own: &'a Documents,
    all: Option<Neighbours<'a>>,
}

impl<'a> OtherClusters<'a> {
    fn of(own: &'a Documents, part: PlanScope<'a>) -> Self {
        let all = match part {
            PlanScope::Cluster(neighbours) => Some(neighbours),
            PlanScope::All | PlanScope::Machines(_) => None,
        };
        Self { own, all }
    }

    fn clusters(&self) -> impl Iterator<Item = &'a Cluster> {
        let clusters = self.all.into_iter().flat_map(|all| &all.documents.clusters);
        clusters.filter(|(name, _)| !self.own.clusters.contains_key(*name)).map(|(_, cluster)| &**cluster)
    }

    fn users(&self) -> impl Iterator<Item = u32> {
        self.all.into_iter().flat_map(|all| all.users.iter().copied())
    }

    fn components(&self) -> impl Iterator<Item = &'a Component> {
        let components = self.all.into_iter().flat_map(|all| all.documents.components.values());
        components
            .map(|component| &**component)
            .filter(|component| !self.own.clusters.contains_key(&component.spec.cluster))
    }
}

pub(crate) struct Room<'a> {
    pub(crate) machine: &'a ValidatedHypervisor,
    /// The number of components on it.
    pub(crate) load: usize,
    /// The free resources for components. None: the machine does not report its capacity, which counts as enough.
    pub(crate) left: Option<Amount>,
    pub(crate) ports: Ports,
    pub(crate) disk_pressure: bool,
}

impl<'a> FleetCapacity<'a> {
    pub(crate) fn of(
        documents: &Documents,
        part: PlanScope<'_>,
        world: &'a ValidatedDocuments,
        seen: &PassObservation,
    ) -> Self {
        let others = OtherClusters::of(documents, part);
        let unknown = PortFacts::default();
        let mut rooms: BTreeMap<&HypervisorName, Room> = BTreeMap::new();
        for machine in world.machines.values() {
            let state = seen.machine(&machine.name);
            let left = state.and_then(|state| state.capacity).map(Amount::allocatable);
            let facts = state.map_or(&unknown, |state| &state.ports);
            let disk_pressure = state.is_some_and(|state| state.disk_pressure);
            let ports = Ports::of(machine, facts);
            rooms.insert(&machine.name, Room { machine, load: 0, left, ports, disk_pressure });
        }
        let own = documents.components.values().map(|component| &**component);
        for component in own.chain(others.components()) {
            let Some(room) = rooms.get_mut(&component.spec.hypervisor) else { continue };
            room.take(&component.spec);
        }
        let mut order: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let open = |name: &HypervisorName, room: &Room| {
            seen.machine(name).is_some() && room.machine.schedulable && !room.disk_pressure
        };
        for (name, room) in rooms.iter().filter(|(name, room)| open(name, room)) {
            order.entry(room.place()).or_default().insert((room.load, *name));
        }
        let own = documents.components.values().map(|component| &**component);
        let all = own.chain(others.components());
        let of_components = all.map(|component| component.spec.user);
        // Files of clusters that no document names have owners too.
        let of_files = seen.machines.values().filter_map(|seen| seen.known()).flat_map(|state| state.files.values());
        let users = of_components.chain(of_files.map(|file| file.user)).chain(others.users()).collect();
        let public = rooms.values().filter(|room| room.machine.role == Role::Ingress.row().runs_on);
        let reserved = ports::reserved(
            documents.clusters.values().map(|cluster| &**cluster),
            documents.components.values().map(|component| &**component),
        );
        let by_others = ports::reserved(others.clusters(), others.components());
        let ingress = IngressPorts::of(reserved.chain(by_others), public.map(|room| &room.ports));
        Self { rooms, order, ingress, users, next_user: FIRST_USER, given_back: BTreeSet::new() }
    }

    /// Whether components are to move away from a machine.
    pub(crate) fn drains(&self, name: &HypervisorName) -> bool {
        self.rooms.get(name).is_some_and(|room| room.machine.drained)
    }

    /// Reserves a port that is free on every public machine.
    ///
    /// If no public machine accepts components, no port is reserved: the ports in use on a machine that does not respond are unknown.
    pub(crate) fn reserve_ingress_port(&mut self, named: Option<u16>) -> Result<u16, PlacementError> {
        let kind = Role::Ingress.row().runs_on;
        let has_one = self.rooms.values().any(|room| room.machine.role == kind);
        if has_one && !self.order.keys().any(|(of, _)| *of == kind) {
            return Err(PlacementError::NoOpenMachine(kind));
        }
        let Some(port) = named else { return self.ingress.reserve() };
        if !self.ingress.is_reserved(port) {
            self.check_named_port(port)?;
        }
        self.ingress.reserve_named(port)
    }

    /// Whether ingresses may have a port on every public machine.
    fn check_named_port(&self, port: u16) -> Result<(), PlacementError> {
        let kind = Role::Ingress.row().runs_on;
        let that = |is: fn(&Ports, u16) -> bool| -> Shortened<HypervisorName> {
            let public = self.rooms.values().filter(|room| room.machine.role == kind && is(&room.ports, port));
            public.map(|room| room.machine.name.clone()).collect()
        };
        let (taken, privileged) = (that(Ports::is_taken), that(Ports::is_privileged));
        if !taken.is_empty() {
            return Err(PlacementError::PortInUse { port, machines: taken });
        }
        if !privileged.is_empty() {
            return Err(PlacementError::PrivilegedPort { port, machines: privileged });
        }
        Ok(())
    }

    /// A user id that no component and no file has.
    pub(crate) fn take_user(&mut self) -> Option<u32> {
        let user = (self.next_user..=LAST_USER).find(|user| !self.users.contains(user))?;
        self.next_user = user + 1;
        Some(user)
    }

    /// Machines of a kind that respond, accept components and have room. Of the machines without a component of the cluster, only the least
    /// loaded one of each zone is returned: by every rule it is better than the others of its zone.
    pub(crate) fn candidates<'b>(
        &'b self,
        kind: HypervisorRole,
        of_cluster: &'b BTreeSet<&HypervisorName>,
        fits: impl Fn(&Room) -> bool + Copy + 'b,
    ) -> impl Iterator<Item = &'b Room<'a>> {
        let of_kind = self.order.iter().filter(move |((held, _), _)| *held == kind).map(|(_, names)| names);
        let others = of_kind.clone().filter_map(move |names| {
            let names = names.iter().map(|(_, name)| *name).filter(|name| !of_cluster.contains(name));
            names.filter_map(|name| self.rooms.get(name)).find(|room| fits(room))
        });
        let own = of_cluster.iter().filter_map(|name| self.rooms.get(name));
        own.filter(move |room| self.answers(room) && room.machine.role == kind && fits(room)).chain(others)
    }

    /// The ports of a component that is placed on a machine beside another one.
    pub(crate) fn ports_beside(
        &self,
        role: Role,
        name: &HypervisorName,
    ) -> Result<BTreeMap<String, u16>, PlacementError> {
        let room = self.rooms.get(name).filter(|room| self.answers(room));
        let room = room.ok_or_else(|| PlacementError::ClosedMachine(name.clone()))?;
        let requests = role.row().requests;
        if let Some(left) = room.left.filter(|left| !left.holds(requests)) {
            return Err(PlacementError::NoRoom { machine: name.clone(), requests, left });
        }
        let ports = room.ports.lowest_but(role.row().ports, |port| self.ingress.is_reserved(port));
        ports.ok_or_else(|| lacks_ports(role.row().ports.len(), name))
    }

    /// Assigns more ports to a component that is already on a machine.
    pub(crate) fn take_ports(
        &mut self,
        names: &[&str],
        name: &HypervisorName,
    ) -> Result<BTreeMap<String, u16>, PlacementError> {
        let room = self.rooms.get_mut(name).ok_or_else(|| PlacementError::NoDocument(name.clone()))?;
        let ports = room.ports.lowest_but(names, |port| self.ingress.is_reserved(port));
        let ports = ports.ok_or_else(|| lacks_ports(names.len(), name))?;
        room.ports.take(ports.values().copied());
        if room.machine.role == Role::Ingress.row().runs_on {
            self.ingress.take(ports.values().copied());
        }
        Ok(ports)
    }

    /// Every machine of a kind, by name, and whether it accepts components.
    pub(crate) fn of_kind(&self, kind: HypervisorRole) -> impl Iterator<Item = (&Room<'a>, bool)> {
        let of_kind = self.rooms.values().filter(move |room| room.machine.role == kind);
        of_kind.map(|room| (room, self.answers(room)))
    }

    fn answers(&self, room: &Room) -> bool {
        self.order.get(&room.place()).is_some_and(|names| names.contains(&(room.load, &room.machine.name)))
    }

    /// Adds a component to the load of its machine.
    pub(crate) fn enter(&mut self, component: &ComponentSpec) {
        if component.role.row().runs_on == Role::Ingress.row().runs_on {
            self.ingress.take(component.ports.values().copied());
        }
        self.change(&component.hypervisor, |room| room.take(component));
    }

    /// Removes a component from the load of its machine.
    pub(crate) fn leave(&mut self, component: &ComponentSpec) {
        self.change(&component.hypervisor, |room| room.load -= 1);
        self.given_back.insert((component.cluster_id.clone(), component.role, component.index));
    }

    /// Whether a component with this name left in this plan.
    pub(crate) fn is_released(&self, id: &ClusterId, role: Role, index: u32) -> bool {
        self.given_back.contains(&(id.clone(), role, index))
    }

    fn change(&mut self, name: &HypervisorName, change: impl FnOnce(&mut Room<'a>)) {
        let Some(room) = self.rooms.get_mut(name) else { return };
        let before = room.load;
        change(room);
        let Some(names) = self.order.get_mut(&room.place()) else { return };
        if names.remove(&(before, &room.machine.name)) {
            names.insert((room.load, &room.machine.name));
        }
    }
}

fn lacks_ports(number: usize, name: &HypervisorName) -> PlacementError {
    PlacementError::TooFewPorts { machine: name.clone(), number }
}

impl<'a> Room<'a> {
    fn place(&self) -> (HypervisorRole, &'a str) {
        (self.machine.role, self.machine.zone.as_str())
    }

    fn take(&mut self, component: &ComponentSpec) {
        self.load += 1;
        self.left = self.left.map(|left| left.less(component.role.row().requests));
        self.ports.take(component.ports.values().copied());
    }

    /// Whether a component of this role fits into the free resources.
    pub(crate) fn holds(&self, role: Role) -> bool {
        self.left.is_none_or(|left| left.holds(role.row().requests))
    }

    /// Whether the machine has fewer free ports than a component of this role needs. An ingress needs the port of its cluster.
    pub(crate) fn lacks_ports(&self, role: Role, ingress_port: Option<IngressPort>) -> bool {
        if role == Role::Ingress {
            return ingress_port.is_some_and(|port| !self.ports.is_free_for_ingress(port));
        }
        self.ports.has_fewer_than(role.row().ports.len())
    }

    /// The ports of a component of this role on this machine. None: there are too few.
    pub(crate) fn ports_for(&self, role: Role, ingress_port: Option<IngressPort>) -> Option<BTreeMap<String, u16>> {
        if role == Role::Ingress {
            let port = ingress_port.filter(|port| self.ports.is_free_for_ingress(*port))?;
            return Some([(API.into(), port.number)].into());
        }
        self.ports.lowest(role.row().ports)
    }
}
