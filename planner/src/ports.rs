//! Ports of machines.

use alloc::collections::BTreeSet;

use keelway_api::{Documents, machine::PortFacts, name::HypervisorName, role::API, validated::ValidatedHypervisor};

/// Which ports of one machine may not be given away.
pub(crate) struct Taken {
    numbers: BTreeSet<u16>,
    ephemeral: Option<(u16, u16)>,
}

impl Taken {
    /// Ports that components have, the API port of every cluster (reserved on all public machines), ports that something
    /// listens on, and those that the kernel gives to outgoing connections.
    pub(crate) fn on(machine: &ValidatedHypervisor, documents: &Documents, facts: &PortFacts) -> Self {
        let mut numbers = facts.listening.clone();
        numbers.extend(held(documents, &machine.name));
        numbers.extend(ingress_ports(documents));
        Self { numbers, ephemeral: facts.ephemeral }
    }

    fn free(&self, port: u16) -> bool {
        let ephemeral = self.ephemeral.is_some_and(|(from, to)| (from..=to).contains(&port));
        !ephemeral && !self.numbers.contains(&port)
    }

    /// Takes the lowest free port of the machine's range.
    pub(crate) fn take(&mut self, machine: &ValidatedHypervisor) -> Option<u16> {
        let port = (machine.ports.from..=machine.ports.to).find(|port| self.free(*port))?;
        self.numbers.insert(port);
        Some(port)
    }
}

fn held<'a>(documents: &'a Documents, machine: &'a HypervisorName) -> impl Iterator<Item = u16> + 'a {
    documents
        .components
        .values()
        .filter(move |component| component.spec.hypervisor == *machine)
        .flat_map(|component| component.spec.ports.values().copied())
}

fn ingress_ports(documents: &Documents) -> impl Iterator<Item = u16> + '_ {
    let recorded = documents.clusters.values().filter_map(|cluster| cluster.status.as_ref()?.ingress_port);
    let used = documents.components.values().filter_map(|component| component.spec.ports.get(API).copied());
    recorded.chain(used)
}

/// The lowest port that is free on every one of these machines.
pub(crate) fn common(machines: &[(&ValidatedHypervisor, Taken)]) -> Option<u16> {
    let (first, _) = machines.first()?;
    (first.ports.from..=first.ports.to).find(|port| {
        machines
            .iter()
            .all(|(machine, taken)| (machine.ports.from..=machine.ports.to).contains(port) && taken.free(*port))
    })
}
