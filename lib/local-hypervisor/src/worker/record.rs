//! The workers of a fleet and the NATs that they are behind. Pure, except for reading and writing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    ops::RangeInclusive,
};

use ipnet::Ipv4Net;
use keelway_api::name::is_label;
use serde::{Deserialize, Serialize};

use super::WorkerMachine;
use crate::{
    Fleet, LocalHypervisorError,
    files::{none_if_missing, read_if_there, write_atomically},
    network::{FleetNetwork, GUESTS},
};

/// The longest name. The path of a worker's socket has room for no more.
const LONGEST: usize = 20;

/// The last octets of the addresses behind a NAT. The NAT itself has octet 1.
const INSIDE: RangeInclusive<u8> = 2..=254;

/// All workers and NATs of a fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkersRecord {
    pub(super) workers: BTreeMap<String, NetworkPosition>,
    pub(super) nats: BTreeMap<String, Nat>,
}

/// The position of a worker or a NAT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkPosition {
    /// The nearest NAT that it is behind. `None` in the public network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) behind: Option<String>,
    /// The last octet of its address in that network.
    pub(super) octet: u8,
}

/// A NAT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nat {
    pub(super) place: NetworkPosition,
    /// The range behind the NAT is 192.168.N.0/24.
    pub(super) range: u8,
}

impl Nat {
    pub(super) fn inside(&self) -> Ipv4Net {
        inside(self.range, 1)
    }
}

fn inside(range: u8, octet: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, range, octet), 24)
}

impl WorkersRecord {
    pub(super) fn load(fleet: &Fleet) -> Result<Self, LocalHypervisorError> {
        let path = fleet.workers();
        let Some(text) = read_if_there(&path)? else {
            return Ok(Self::default());
        };
        serde_json::from_str(&text).map_err(|source| LocalHypervisorError::Record { path, source })
    }

    pub(super) fn save(&self, fleet: &Fleet) -> Result<(), LocalHypervisorError> {
        let path = fleet.workers();
        if *self == Self::default() {
            return none_if_missing(fs::remove_file(&path))
                .map(drop)
                .map_err(LocalHypervisorError::file("remove", path));
        }
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| LocalHypervisorError::Record { path: path.clone(), source })?;
        write_atomically(&path, &text)
    }

    /// Adds a worker, and its missing NATs. Existing ones stay unchanged.
    pub(super) fn place(&mut self, name: &str, behind: &[String]) -> Result<(), LocalHypervisorError> {
        if let Some(bad) = behind.iter().map(String::as_str).chain([name]).find(|name| !is_label(name, LONGEST)) {
            return Err(LocalHypervisorError::WorkerName { name: bad.to_owned(), longest: LONGEST });
        }
        if let Some(twice) = behind.iter().enumerate().find(|(index, nat)| behind[..*index].contains(nat)) {
            return Err(LocalHypervisorError::NatTwice { name: twice.1.clone() });
        }
        for (index, nat) in behind.iter().enumerate().rev() {
            self.place_nat(nat, behind.get(index + 1), index)?;
        }
        let next = behind.first().cloned();
        match self.workers.get(name) {
            Some(place) if place.behind == next => Ok(()),
            Some(place) => Err(wrong_position_error(name, place)),
            None => {
                let octet = self.free(next.as_ref())?;
                self.workers.insert(name.to_owned(), NetworkPosition { behind: next, octet });
                Ok(())
            }
        }
    }

    /// Adds a NAT. Its range follows from its distance to the worker, unless a NAT that it is behind already has that range.
    fn place_nat(&mut self, name: &str, behind: Option<&String>, distance: usize) -> Result<(), LocalHypervisorError> {
        match self.nats.get(name) {
            Some(nat) if nat.place.behind.as_ref() == behind => Ok(()),
            Some(nat) => Err(wrong_position_error(name, &nat.place)),
            None => {
                let octet = self.free(behind)?;
                let taken = self.ranges(behind);
                let first = u8::try_from(distance + 1).map_err(|_| full(Some(name)))?;
                let range = (first..=u8::MAX).find(|range| !taken.contains(range)).ok_or_else(|| full(Some(name)))?;
                let place = NetworkPosition { behind: behind.cloned(), octet };
                self.nats.insert(name.to_owned(), Nat { place, range });
                Ok(())
            }
        }
    }

    /// Returns the ranges on the way out from behind a NAT. A new range must differ from them, so that no address is on both sides of a NAT.
    fn ranges(&self, behind: Option<&String>) -> BTreeSet<u8> {
        let nat = |name: &String| self.nats.get(name);
        let series = std::iter::successors(behind.and_then(nat), |next| next.place.behind.as_ref().and_then(nat));
        series.map(|nat| nat.range).collect()
    }

    /// Returns the lowest free address behind a NAT, or in the public network.
    pub(super) fn free(&self, behind: Option<&String>) -> Result<u8, LocalHypervisorError> {
        let places = self.workers.values().chain(self.nats.values().map(|nat| &nat.place));
        let taken: BTreeSet<u8> =
            places.filter(|place| place.behind.as_ref() == behind).map(|place| place.octet).collect();
        let mut all = if behind.is_some() { INSIDE } else { GUESTS };
        all.find(|octet| !taken.contains(octet)).ok_or_else(|| full(behind.map(String::as_str)))
    }

    /// Returns the NATs that a worker is behind, nearest first.
    pub(super) fn behind(&self, worker: &str) -> Vec<String> {
        let mut next = self.workers.get(worker).and_then(|place| place.behind.clone());
        let mut series = Vec::new();
        while let Some(name) = next {
            next = self.nats.get(&name).and_then(|nat| nat.place.behind.clone());
            series.push(name);
        }
        series
    }

    /// Returns the address of a position, with the prefix length of its network.
    pub(super) fn address(&self, place: &NetworkPosition, network: FleetNetwork) -> Ipv4Net {
        match place.behind.as_ref().and_then(|nat| self.nats.get(nat)) {
            Some(nat) => inside(nat.range, place.octet),
            None => Ipv4Net::new_assert(network.guest_address(place.octet), network.public().prefix_len()),
        }
    }

    /// Returns the NATs without a worker, inner ones first.
    pub(super) fn idle(&self) -> Vec<String> {
        let mut rest = self.clone();
        let mut idle = Vec::new();
        loop {
            let places: Vec<&NetworkPosition> =
                rest.workers.values().chain(rest.nats.values().map(|nat| &nat.place)).collect();
            let used = |name: &String| places.iter().any(|place| place.behind.as_ref() == Some(name));
            let Some(next) = rest.nats.keys().find(|name| !used(name)).cloned() else {
                return idle;
            };
            rest.nats.remove(&next);
            idle.push(next);
        }
    }

    pub(super) fn worker(
        &self,
        fleet: &Fleet,
        network: FleetNetwork,
        name: &str,
    ) -> Result<WorkerMachine, LocalHypervisorError> {
        let no_worker = || LocalHypervisorError::NoWorker { name: name.to_owned(), fleet: fleet.name().to_owned() };
        let place = self.workers.get(name).ok_or_else(no_worker)?;
        let behind = self.behind(name);
        let outermost = behind.last().and_then(|nat| self.nats.get(nat)).map_or(place, |nat| &nat.place);
        Ok(WorkerMachine {
            name: name.to_owned(),
            address: self.address(place, network).addr(),
            public_address: self.address(outermost, network).addr(),
            socket: fleet.worker(name).socket(),
            behind,
        })
    }
}

fn wrong_position_error(name: &str, place: &NetworkPosition) -> LocalHypervisorError {
    let place = place.behind.as_ref().map_or("in the public network".to_owned(), |nat| format!("behind {nat}"));
    LocalHypervisorError::Elsewhere { name: name.to_owned(), place }
}

fn full(nat: Option<&str>) -> LocalHypervisorError {
    let place = nat.map_or("in the public network".to_owned(), |nat| format!("behind {nat}"));
    LocalHypervisorError::Full { place }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(all: &[(&str, &[&str])]) -> Result<WorkersRecord, LocalHypervisorError> {
        let mut workers = WorkersRecord::default();
        for (name, behind) in all {
            let behind: Vec<String> = behind.iter().map(|nat| (*nat).to_owned()).collect();
            workers.place(name, &behind)?;
        }
        Ok(workers)
    }

    fn seen(workers: &WorkersRecord, name: &str) -> String {
        let network = FleetNetwork::lowest_free(&BTreeSet::new(), &[]).unwrap();
        let worker = workers.worker(&Fleet::default(), network, name).unwrap();
        format!("{} as {} through {}", worker.address, worker.public_address, worker.behind.join(" "))
    }

    #[test]
    fn workers_behind_different_nats_have_equal_addresses() {
        let workers = placed(&[("w1", &["a"]), ("w2", &["b", "c"]), ("w3", &[]), ("w4", &["a"])]).unwrap();
        assert_eq!(seen(&workers, "w1"), "192.168.1.2 as 198.18.0.110 through a");
        assert_eq!(seen(&workers, "w2"), "192.168.1.2 as 198.18.0.111 through b c");
        assert_eq!(seen(&workers, "w3"), "198.18.0.112 as 198.18.0.112 through ");
        assert_eq!(seen(&workers, "w4"), "192.168.1.3 as 198.18.0.110 through a");
    }

    #[test]
    fn existing_workers_keep_their_position() {
        assert_eq!(
            placed(&[("w1", &["a", "b"]), ("w1", &["a", "b"])]).unwrap(),
            placed(&[("w1", &["a", "b"])]).unwrap()
        );
        assert!(matches!(placed(&[("w1", &["a"]), ("w1", &[])]), Err(LocalHypervisorError::Elsewhere { .. })));
        assert!(matches!(placed(&[("w1", &["a"]), ("w2", &["a", "b"])]), Err(LocalHypervisorError::Elsewhere { .. })));
        assert!(matches!(placed(&[("w1", &["a", "a"])]), Err(LocalHypervisorError::NatTwice { .. })));
        assert!(matches!(placed(&[("w1", &["../a"])]), Err(LocalHypervisorError::WorkerName { .. })));
    }

    #[test]
    fn no_range_is_on_both_sides_of_a_nat() {
        let workers = placed(&[("w1", &["a"]), ("w2", &["b", "a"]), ("w3", &["c", "b", "a"])]).unwrap();
        assert_eq!(workers.nats.values().map(|nat| nat.range).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(seen(&workers, "w2"), "192.168.2.2 as 198.18.0.110 through b a");
    }

    #[test]
    fn a_nat_is_removed_with_its_last_worker() {
        let mut workers = placed(&[("w1", &["a", "c"]), ("w2", &["b", "c"])]).unwrap();
        assert!(workers.idle().is_empty());
        workers.workers.remove("w1");
        assert_eq!(workers.idle(), ["a"]);
        workers.workers.remove("w2");
        assert_eq!(workers.idle(), ["a", "b", "c"]);
    }

    /// `sun_path` has 108 bytes. A limit of 100 leaves room for a proxy's suffix.
    #[test]
    fn the_longest_socket_path_fits() {
        let fleet = Fleet::new("f".repeat(21)).unwrap();
        assert!(fleet.worker(&"w".repeat(LONGEST)).socket().as_os_str().len() < 100);
    }
}
