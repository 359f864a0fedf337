//! What the machines have left for components, kept up to date while components are placed.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
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
    plan::{Neighbours, PlanScope},
    ports::{self, IngressPorts, Ports},
    text::{count, kind_of_machine},
    world::ValidatedDocuments,
};

/// The first user id of components. Above every range that distributions give to people, services, containers and
/// `systemd-nspawn` ("Users, Groups, UIDs and GIDs on systemd Systems"), below 2^31.
const FIRST_USER: u32 = 1_900_000_000;
/// The last one: more than two hundred million roles of clusters.
const LAST_USER: u32 = 2_147_000_000;

/// The machines, with what can still be given away.
///
/// What a component gives back is given away by a later plan only: its process may not have ended yet.
pub(crate) struct FleetCapacity<'a> {
    rooms: BTreeMap<&'a HypervisorName, Room<'a>>,
    /// Names of the machines that answer, by kind and zone, the least loaded first.
    order: BTreeMap<(HypervisorRole, &'a str), BTreeSet<(usize, &'a HypervisorName)>>,
    ingress: IngressPorts,
    users: BTreeSet<u32>,
    /// Below it every user id is used.
    next_user: u32,
    /// Names of components that were counted out: one of that name elsewhere would look as if it had moved.
    given_back: BTreeSet<(ClusterId, Role, u32)>,
}

/// The clusters that a plan is not of.
struct OtherClusters<'a> {
    /// Those that it is of.
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

/// One machine.
pub(crate) struct Room<'a> {
    pub(crate) machine: &'a ValidatedHypervisor,
    /// How many components it holds.
    pub(crate) load: usize,
    /// What is left of it for components. `None`: it does not tell, and has enough.
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
        // Files of clusters that nobody tells of are there too.
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

    /// Reserves a port that is free on every public machine. What to wait for, where there is none.
    ///
    /// While none of them can be told to take an ingress there is time: what listens on one that does not answer is not known.
    pub(crate) fn reserve_ingress_port(&mut self) -> Result<u16, String> {
        let kind = Role::Ingress.row().runs_on;
        let has_one = self.rooms.values().any(|room| room.machine.role == kind);
        if has_one && !self.order.keys().any(|(of, _)| *of == kind) {
            return Err(format!("a {} hypervisor that answers and takes components: add one", kind_of_machine(kind)));
        }
        self.ingress.reserve()
    }

    /// A user id that nobody has.
    pub(crate) fn take_user(&mut self) -> Option<u32> {
        let user = (self.next_user..=LAST_USER).find(|user| !self.users.contains(user))?;
        self.next_user = user + 1;
        Some(user)
    }

    /// Machines of a kind that answer, take components and have room. Of those that hold nothing of the cluster only the least
    /// loaded one of each zone, because it is better than the others of its zone by every rule; and all that hold something.
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

    /// The ports of a component that goes onto a machine beside another one. What it waits for, where that has no room.
    pub(crate) fn ports_beside(&self, role: Role, name: &HypervisorName) -> Result<BTreeMap<String, u16>, String> {
        let room = self.rooms.get(name).filter(|room| self.answers(room));
        let room = room.ok_or_else(|| format!("{name} to answer and take components"))?;
        if !room.holds(role) {
            let left = room.left.map(|left| format!(", of which it has {left}")).unwrap_or_default();
            return Err(format!("room on {name}: {}{left}", role.row().requests));
        }
        let ports = room.ports.lowest_but(role.row().ports, |port| self.ingress.is_reserved(port));
        ports.ok_or_else(|| lacks_ports(role.row().ports.len(), name))
    }

    /// Gives more ports to a component that is on a machine already. What it waits for, where that has no more.
    pub(crate) fn take_ports(
        &mut self,
        names: &[&str],
        name: &HypervisorName,
    ) -> Result<BTreeMap<String, u16>, String> {
        let room = self.rooms.get_mut(name).ok_or_else(|| format!("{name} to be there"))?;
        let ports = room.ports.lowest_but(names, |port| self.ingress.is_reserved(port));
        let ports = ports.ok_or_else(|| lacks_ports(names.len(), name))?;
        room.ports.take(ports.values().copied());
        if room.machine.role == Role::Ingress.row().runs_on {
            self.ingress.take(ports.values().copied());
        }
        Ok(ports)
    }

    /// Every machine of a kind, by name, with whether components may be placed on it.
    pub(crate) fn of_kind(&self, kind: HypervisorRole) -> impl Iterator<Item = (&Room<'a>, bool)> {
        let of_kind = self.rooms.values().filter(move |room| room.machine.role == kind);
        of_kind.map(|room| (room, self.answers(room)))
    }

    fn answers(&self, room: &Room) -> bool {
        self.order.get(&room.place()).is_some_and(|names| names.contains(&(room.load, &room.machine.name)))
    }

    /// Counts a component in.
    pub(crate) fn enter(&mut self, component: &ComponentSpec) {
        if component.role.row().runs_on == Role::Ingress.row().runs_on {
            self.ingress.take(component.ports.values().copied());
        }
        self.change(&component.hypervisor, |room| room.take(component));
    }

    /// Counts a component out.
    pub(crate) fn leave(&mut self, component: &ComponentSpec) {
        self.change(&component.hypervisor, |room| room.load -= 1);
        self.given_back.insert((component.cluster_id.clone(), component.role, component.index));
    }

    /// Whether a name was given back in this plan.
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

fn lacks_ports(number: usize, name: &HypervisorName) -> String {
    format!("{} in spec.portRange of {name}: widen it", count(number, "free port"))
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

    /// Whether a component of this role fits into what is left.
    pub(crate) fn holds(&self, role: Role) -> bool {
        self.left.is_none_or(|left| left.holds(role.row().requests))
    }

    /// Whether its range has fewer free ports than a component of this role takes, or not the one that it must have.
    pub(crate) fn lacks_ports(&self, role: Role, ingress_port: Option<u16>) -> bool {
        if role == Role::Ingress {
            return ingress_port.is_some_and(|port| !self.ports.free(port));
        }
        self.ports.has_fewer_than(role.row().ports.len())
    }

    /// The ports of a component of this role here, where there are any.
    pub(crate) fn ports_for(&self, role: Role, ingress_port: Option<u16>) -> Option<BTreeMap<String, u16>> {
        if role == Role::Ingress {
            let port = ingress_port.filter(|port| self.ports.free(*port))?;
            return Some([(API.into(), port)].into());
        }
        self.ports.lowest(role.row().ports)
    }
}
