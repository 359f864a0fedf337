//! Ports of machines.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
};

use keelway_api::{
    Documents,
    hypervisor::PortRange,
    machine::PortFacts,
    role::{API, Role},
    validated::ValidatedHypervisor,
};

/// Which ports of one machine may be given away.
pub(crate) struct Ports {
    range: PortRange,
    ephemeral: Option<(u16, u16)>,
    taken: BTreeSet<u16>,
}

impl Ports {
    /// Those of its range but for what something listens on, and what the kernel gives to outgoing connections.
    pub(crate) fn of(machine: &ValidatedHypervisor, facts: &PortFacts) -> Self {
        Self { range: machine.ports, ephemeral: facts.ephemeral, taken: facts.listening.clone() }
    }

    pub(crate) fn take(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.taken.extend(ports);
    }

    pub(crate) fn free(&self, port: u16) -> bool {
        let ephemeral = self.ephemeral.is_some_and(|(from, to)| (from..=to).contains(&port));
        (self.range.from..=self.range.to).contains(&port) && !ephemeral && !self.taken.contains(&port)
    }

    /// The lowest free port for each of these names, where there are as many.
    pub(crate) fn lowest(&self, names: &[&str]) -> Option<BTreeMap<String, u16>> {
        let free = (self.range.from..=self.range.to).filter(|port| self.free(*port));
        let ports: BTreeMap<_, _> = names.iter().map(ToString::to_string).zip(free).collect();
        (ports.len() == names.len()).then_some(ports)
    }
}

/// The numbers that clusters reserve on all public machines, one each.
pub(crate) struct IngressPorts {
    reserved: BTreeSet<u16>,
    /// Below it nothing is free on all machines.
    next: u32,
}

impl IngressPorts {
    pub(crate) fn of(documents: &Documents) -> Self {
        let recorded = documents.clusters.values().filter_map(|cluster| cluster.status.as_ref()?.ingress_port);
        let ingresses = documents.components.values().filter(|component| component.spec.role == Role::Ingress);
        let used = ingresses.filter_map(|component| component.spec.ports.get(API).copied());
        Self { reserved: recorded.chain(used).collect(), next: 0 }
    }

    /// Reserves the lowest port that is free on every one of these machines.
    pub(crate) fn reserve(&mut self, machines: &[&Ports]) -> Option<u16> {
        let from = machines.iter().map(|ports| ports.range.from).max()?;
        let to = machines.iter().map(|ports| ports.range.to).min()?;
        let mut candidates = self.next.max(from.into())..=to.into();
        let port = candidates.find_map(|port| {
            let port = u16::try_from(port).ok()?;
            (!self.reserved.contains(&port) && machines.iter().all(|ports| ports.free(port))).then_some(port)
        })?;
        self.reserved.insert(port);
        self.next = u32::from(port) + 1;
        Some(port)
    }
}
