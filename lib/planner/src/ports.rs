//! Ports of machines.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
};
use core::ops::RangeInclusive;

use keelway_api::{
    Cluster, Component,
    hypervisor::PortRange,
    machine::PortFacts,
    role::{API, Role},
    validated::ValidatedHypervisor,
};

use crate::placement_error::PlacementError;

/// The port of a cluster's ingresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IngressPort {
    pub(crate) number: u16,
    /// Whether `spec.ingress.port` names it. It may then be outside of `spec.portRange`.
    pub(crate) is_named: bool,
}

/// The ports of one machine that may be assigned.
pub(crate) struct Ports {
    range: PortRange,
    ephemeral: Option<(u16, u16)>,
    unprivileged_from: Option<u16>,
    taken: BTreeSet<u16>,
    /// No port below this one is free.
    next: u32,
}

impl Ports {
    /// The ports of the machine's range, without those that are in use and those of the kernel's ephemeral range.
    pub(crate) fn of(machine: &ValidatedHypervisor, facts: &PortFacts) -> Self {
        let range = machine.ports;
        Self {
            range,
            ephemeral: facts.ephemeral,
            unprivileged_from: facts.unprivileged_from,
            taken: facts.listening.clone(),
            next: range.from.into(),
        }
    }

    pub(crate) fn take(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.taken.extend(ports);
        let lowest = self.all_free().next();
        self.next = lowest.map_or(u32::from(self.range.to) + 1, u32::from);
    }

    pub(crate) fn free(&self, port: u16) -> bool {
        (self.range.from..=self.range.to).contains(&port) && !self.is_taken(port)
    }

    /// Whether an ingress may have the port.
    pub(crate) fn is_free_for_ingress(&self, port: IngressPort) -> bool {
        let IngressPort { number, is_named } = port;
        if is_named { !self.is_taken(number) && !self.is_privileged(number) } else { self.free(number) }
    }

    /// Whether something listens on the port, or may.
    pub(crate) fn is_taken(&self, port: u16) -> bool {
        self.ephemeral.is_some_and(|(from, to)| (from..=to).contains(&port)) || self.taken.contains(&port)
    }

    /// Whether only root may listen on the port. Components are never root.
    pub(crate) fn is_privileged(&self, port: u16) -> bool {
        self.unprivileged_from.is_some_and(|from| port < from)
    }

    /// The lowest free port for each of these names. None: there are too few.
    pub(crate) fn lowest(&self, names: &[&str]) -> Option<BTreeMap<String, u16>> {
        self.lowest_but(names, |_| false)
    }

    /// Like [`Self::lowest`], without the ports for which `but` returns true.
    pub(crate) fn lowest_but(&self, names: &[&str], but: impl Fn(u16) -> bool) -> Option<BTreeMap<String, u16>> {
        let free = self.all_free().filter(|port| !but(*port));
        let ports: BTreeMap<_, _> = names.iter().map(ToString::to_string).zip(free).collect();
        (ports.len() == names.len()).then_some(ports)
    }

    /// Whether fewer than `number` ports are free.
    pub(crate) fn has_fewer_than(&self, number: usize) -> bool {
        self.all_free().take(number).count() < number
    }

    fn all_free(&self) -> impl Iterator<Item = u16> {
        numbers(self.next..=self.range.to.into()).filter(|port| self.free(*port))
    }
}

fn numbers(range: RangeInclusive<u32>) -> impl Iterator<Item = u16> {
    range.map_while(|port| u16::try_from(port).ok())
}

/// The ports that clusters reserve on all public machines, one for each cluster.
#[derive(Default)]
pub(crate) struct IngressPorts {
    /// The intersection of the ranges of all public machines. None: there is no public machine.
    range: Option<PortRange>,
    ephemeral: BTreeSet<(u16, u16)>,
    /// In use on any public machine, or reserved by a cluster.
    taken: BTreeSet<u16>,
    /// Reserved by clusters.
    reserved: BTreeSet<u16>,
    /// No port below this one is free on all machines.
    next: u32,
}

impl IngressPorts {
    /// The ports of public machines that clusters have not [`reserved`].
    pub(crate) fn of<'a>(reserved: impl Iterator<Item = u16>, machines: impl Iterator<Item = &'a Ports>) -> Self {
        let reserved: BTreeSet<u16> = reserved.collect();
        let mut all = Self { taken: reserved.clone(), reserved, ..Self::default() };
        for Ports { range, ephemeral, taken, .. } in machines {
            let common = all.range.unwrap_or(*range);
            all.range = Some(PortRange { from: common.from.max(range.from), to: common.to.min(range.to) });
            all.ephemeral.extend(ephemeral);
            all.taken.extend(taken);
        }
        all
    }

    /// Reserves the lowest port that is free on every public machine.
    pub(crate) fn reserve(&mut self) -> Result<u16, PlacementError> {
        let range = self.range.ok_or(PlacementError::NoPublicMachine)?;
        if range.from > range.to {
            return Err(PlacementError::NoCommonPort);
        }
        let from = self.next.max(range.from.into());
        let free = numbers(from..=range.to.into()).find(|port| self.is_free(*port));
        let port = free.ok_or(PlacementError::CommonPortsInUse(range))?;
        self.take([port]);
        self.reserved.insert(port);
        self.next = u32::from(port) + 1;
        Ok(port)
    }

    /// Reserves this port for a cluster that names it.
    pub(crate) fn reserve_named(&mut self, port: u16) -> Result<u16, PlacementError> {
        if self.range.is_none() {
            return Err(PlacementError::NoPublicMachine);
        }
        if !self.reserved.insert(port) {
            return Err(PlacementError::PortOfCluster(port));
        }
        self.take([port]);
        Ok(port)
    }

    /// Whether a cluster has reserved the port on all public machines.
    pub(crate) fn is_reserved(&self, port: u16) -> bool {
        self.reserved.contains(&port)
    }

    pub(crate) fn take(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.taken.extend(ports);
    }

    fn is_free(&self, port: u16) -> bool {
        !self.taken.contains(&port) && !self.ephemeral.iter().any(|(from, to)| (*from..=*to).contains(&port))
    }
}

/// The ports that these clusters have reserved on all public machines.
pub(crate) fn reserved<'a>(
    clusters: impl Iterator<Item = &'a Cluster>,
    components: impl Iterator<Item = &'a Component>,
) -> impl Iterator<Item = u16> {
    let recorded = clusters.filter_map(|cluster| cluster.status.as_ref()?.ingress_port);
    let ingresses = components.filter(|component| component.spec.role == Role::Ingress);
    recorded.chain(ingresses.filter_map(|component| component.spec.ports.get(API).copied()))
}
