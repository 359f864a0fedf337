//! Fleets and their machines.

use core::fmt;

use keelway_api::{
    hypervisor::HypervisorRole,
    name::{LONGEST_NAME, is_label},
};
use serde::{Deserialize, Serialize};

use crate::LocalHypervisorError;

/// The name of the default fleet.
const DEFAULT: &str = "local";

/// The longest name of a fleet: with the suffix `-private-99`, it must be a valid name of a Hypervisor.
const LONGEST: usize = LONGEST_NAME - "-private-99".len();

/// The most machines of one role. The address layout has room for this number.
pub(crate) const MOST: u8 = 99;

/// The prefix of a worker's name in the name of its directory.
pub(crate) const WORKER_PREFIX: &str = "worker-";

/// A set of local hypervisors. All its objects on the host contain its name, so that several fleets can exist side by side.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fleet {
    name: String,
}

impl Default for Fleet {
    fn default() -> Self {
        Self { name: DEFAULT.to_owned() }
    }
}

impl Fleet {
    /// Returns the fleet with this name: an RFC 1123 label of at most 21 characters.
    pub fn new(name: impl Into<String>) -> Result<Self, LocalHypervisorError> {
        let name = name.into();
        if is_label(&name, LONGEST) {
            Ok(Self { name })
        } else {
            Err(LocalHypervisorError::FleetName { name, longest: LONGEST })
        }
    }

    /// Returns the name of the fleet.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a hypervisor of the fleet.
    pub(crate) fn machine(&self, id: MachineId) -> FleetMachine {
        FleetMachine { fleet: self.clone(), id: FleetMachineId::Hypervisor(id) }
    }

    /// Returns a worker in the fleet's public network, or behind NATs in it.
    pub(crate) fn worker(&self, name: &str) -> FleetMachine {
        FleetMachine { fleet: self.clone(), id: FleetMachineId::Worker(name.to_owned()) }
    }
}

/// The id of a hypervisor in its fleet. Public ones sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct MachineId {
    pub(crate) role: HypervisorRole,
    /// From 1 to [`MOST`].
    pub(crate) ordinal: u8,
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            HypervisorRole::Public => write!(f, "public-{}", self.ordinal),
            HypervisorRole::Private => write!(f, "private-{}", self.ordinal),
        }
    }
}

/// The kind of a machine, and its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FleetMachineId {
    Hypervisor(MachineId),
    Worker(String),
}

impl fmt::Display for FleetMachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hypervisor(id) => id.fmt(f),
            Self::Worker(name) => write!(f, "{WORKER_PREFIX}{name}"),
        }
    }
}

/// A machine on this host.
#[derive(Debug, Clone)]
pub(crate) struct FleetMachine {
    pub(crate) fleet: Fleet,
    pub(crate) id: FleetMachineId,
}

impl FleetMachine {
    /// Returns the name of its document, which is also its host name. Hypervisors of the default fleet have no prefix, and workers keep their name.
    pub(crate) fn name(&self) -> String {
        match (&self.id, self.fleet.name()) {
            (FleetMachineId::Worker(name), _) => name.clone(),
            (FleetMachineId::Hypervisor(id), DEFAULT) => id.to_string(),
            (FleetMachineId::Hypervisor(id), fleet) => format!("{fleet}-{id}"),
        }
    }

    pub(crate) fn is_worker(&self) -> bool {
        matches!(self.id, FleetMachineId::Worker(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_fleet_has_machines_with_valid_names() {
        let fleet = Fleet::new("f".repeat(LONGEST)).unwrap();
        let last = MachineId { role: HypervisorRole::Private, ordinal: MOST };
        assert!(is_label(&fleet.machine(last).name(), LONGEST_NAME));
        assert!(Fleet::new("f".repeat(LONGEST + 1)).is_err());
        assert!(Fleet::new("../x").is_err());
    }
}
