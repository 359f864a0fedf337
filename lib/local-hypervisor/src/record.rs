//! The desired machines of a fleet. The record is written before the first effect, and survives a reboot.

use std::collections::BTreeSet;

use keelway_api::hypervisor::HypervisorRole;
use serde::{Deserialize, Serialize};

use crate::{
    LocalHypervisorError,
    files::{names, read_if_there, write_atomically},
    fleet::{Fleet, MOST, MachineId},
    layout,
    network::FleetNetwork,
};

/// The record of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) network: FleetNetwork,
    /// Ordered by id.
    pub(crate) machines: Vec<MachineRecord>,
}

/// A machine of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineRecord {
    pub(crate) id: MachineId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Whether the machine has an agent beside its runtime.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(crate) agent: bool,
}

impl Record {
    pub(crate) fn new(network: FleetNetwork) -> Self {
        Self { network, machines: Vec::new() }
    }

    pub(crate) fn load(fleet: &Fleet) -> Result<Option<Self>, LocalHypervisorError> {
        let path = fleet.record();
        let Some(text) = read_if_there(&path)? else {
            return Ok(None);
        };
        serde_json::from_str(&text).map(Some).map_err(|source| LocalHypervisorError::Record { path, source })
    }

    pub(crate) fn save(&self, fleet: &Fleet) -> Result<(), LocalHypervisorError> {
        let path = fleet.record();
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| LocalHypervisorError::Record { path: path.clone(), source })?;
        write_atomically(&path, &text)
    }

    /// Adds machines until the role has `count` of them. It removes none. Zones are assigned in turn.
    pub(crate) fn grow(&mut self, role: HypervisorRole, count: u8, zones: &[String], agent: bool) {
        let there: BTreeSet<u8> =
            self.machines.iter().filter(|entry| entry.id.role == role).map(|entry| entry.id.ordinal).collect();
        let missing = usize::from(count).saturating_sub(there.len());
        let free = (1..=MOST).filter(|ordinal| !there.contains(ordinal));
        let zone = |ordinal: u8| zones.iter().cycle().nth(usize::from(ordinal - 1)).cloned();
        self.machines.extend(free.take(missing).map(|ordinal| MachineRecord {
            id: MachineId { role, ordinal },
            zone: zone(ordinal),
            agent,
        }));
        self.machines.sort();
    }

    /// Returns the machines that `earlier` does not contain.
    pub(crate) fn added_since(&self, earlier: Option<&Self>) -> Vec<MachineId> {
        let had = |id: MachineId| earlier.is_some_and(|record| record.machines.iter().any(|entry| entry.id == id));
        let ids = self.machines.iter().map(|entry| entry.id);
        ids.filter(|id| !had(*id)).collect()
    }
}

/// Returns all fleets of this host, ordered by name.
pub(crate) fn all_fleets() -> Result<Vec<Fleet>, LocalHypervisorError> {
    let mut names = names(layout::STATE.as_ref())?;
    names.sort();
    Ok(names.into_iter().filter_map(|name| Fleet::new(name).ok()).collect())
}

/// Returns the networks of all other fleets, including those that are down.
pub(crate) fn networks_of_others(fleet: &Fleet) -> Result<BTreeSet<FleetNetwork>, LocalHypervisorError> {
    let mut taken = BTreeSet::new();
    for other in all_fleets()?.iter().filter(|other| *other != fleet) {
        taken.extend(Record::load(other)?.map(|record| record.network));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(record: &Record) -> Vec<String> {
        let name = |entry: &MachineRecord| match &entry.zone {
            Some(zone) => format!("{}@{zone}", entry.id),
            None => entry.id.to_string(),
        };
        record.machines.iter().map(name).collect()
    }

    fn empty() -> Record {
        let network = FleetNetwork::lowest_free(&BTreeSet::new(), &[]).unwrap();
        Record::new(network)
    }

    #[test]
    fn growing_a_fleet_keeps_machines_and_fills_gaps() {
        let mut record = empty();
        record.grow(HypervisorRole::Private, 2, &[], false);
        record.grow(HypervisorRole::Public, 1, &[], false);
        assert_eq!(names_of(&record), ["public-1", "private-1", "private-2"]);
        let before = record.clone();
        record.grow(HypervisorRole::Private, 1, &[], false);
        assert_eq!(record, before);
        record.machines.remove(1);
        record.grow(HypervisorRole::Private, 3, &[], false);
        assert_eq!(names_of(&record), ["public-1", "private-1", "private-2", "private-3"]);
        let added: Vec<_> = record.added_since(Some(&before));
        assert_eq!(added.len(), 1);
        assert_eq!(added[0].to_string(), "private-3");
    }

    #[test]
    fn zones_are_assigned_in_turn() {
        let mut record = empty();
        let zones = ["a".to_owned(), "b".to_owned()];
        record.grow(HypervisorRole::Private, 3, &zones, false);
        assert_eq!(names_of(&record), ["private-1@a", "private-2@b", "private-3@a"]);
    }
}
