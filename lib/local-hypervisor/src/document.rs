//! Converts machines to documents.

use std::collections::BTreeMap;

use keelway_api::{
    Hypervisor, Newer,
    hypervisor::{Addresses, HypervisorEndpoint, HypervisorSpec, PortRange},
};

use crate::{
    Fleet, LocalHypervisorError,
    record::{MachineRecord, Record, all_fleets},
};

/// The label that names a machine's fleet.
pub const FLEET_LABEL: &str = "keelway.dev/local-fleet";

/// Kubernetes' label for a failure zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Returns the recorded machines of a fleet, running or not. Returns none if the fleet does not exist.
pub fn list(fleet: &Fleet) -> Result<Vec<Hypervisor>, LocalHypervisorError> {
    let record = Record::load(fleet)?;
    Ok(record.map(|record| documents(fleet, &record)).unwrap_or_default())
}

/// Returns all fleets of this host, ordered by name.
pub fn fleets() -> Result<Vec<Fleet>, LocalHypervisorError> {
    all_fleets()
}

pub(crate) fn documents(fleet: &Fleet, record: &Record) -> Vec<Hypervisor> {
    let machines = record.machines.iter();
    machines.map(|entry| document(fleet, record, entry)).collect()
}

fn document(fleet: &Fleet, record: &Record, entry: &MachineRecord) -> Hypervisor {
    let machine = fleet.machine(entry.id);
    let public = record.network.public_address(entry.id);
    let spec = HypervisorSpec {
        role: entry.id.role,
        endpoint: if entry.agent {
            HypervisorEndpoint::agent(machine.agent_socket().display().to_string())
        } else {
            HypervisorEndpoint::Unix { path: machine.socket().display().to_string() }
        },
        addresses: Addresses {
            private: vec![record.network.private_address(entry.id).to_string()],
            public: public.iter().map(ToString::to_string).collect(),
            bind: Vec::new(),
        },
        port_range: PortRange::default(),
        unschedulable: false,
        drain: false,
        newer: Newer::default(),
    };
    let mut labels = BTreeMap::from([(FLEET_LABEL.to_owned(), fleet.name().to_owned())]);
    labels.extend(entry.zone.clone().map(|zone| (ZONE_LABEL.to_owned(), zone)));
    let mut document = Hypervisor::new(&machine.name(), spec);
    document.metadata.labels = Some(labels);
    document
}
