//! The addresses of one range of the VPN. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use keelway_api::reserved::{GATEWAYS, of_api_on_workers};

/// The offset of the first worker's address. Before it are the network address and the addresses of the API and of gateways.
const FIRST_WORKER: u128 = 2 + GATEWAYS as u128;

/// A range of which workers get addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool(IpNet);

impl Pool {
    pub(crate) fn new(range: IpNet) -> Self {
        Self(range)
    }

    /// Returns the address at which every worker reaches the API.
    pub(crate) fn api(&self) -> Option<IpAddr> {
        Some(of_api_on_workers(&self.0)).filter(|address| self.0.contains(address))
    }

    /// Whether the range has an address for a worker.
    pub(crate) fn has_room(&self) -> bool {
        self.at(FIRST_WORKER).is_some()
    }

    /// Whether a worker can have this address.
    pub(crate) fn holds(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
            && self.offset(address).is_some_and(|offset| self.at(offset) == Some(address) && offset >= FIRST_WORKER)
    }

    /// Returns the lowest free address for a worker.
    pub(crate) fn lowest_free(&self, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        (FIRST_WORKER..).map_while(|offset| self.at(offset)).find(|address| !taken.contains(address))
    }

    fn at(&self, offset: u128) -> Option<IpAddr> {
        let address = match self.0 {
            IpNet::V4(range) => {
                let address = range.network().to_bits().checked_add(u32::try_from(offset).ok()?)?;
                // The last address of a range is its broadcast address.
                (address != range.broadcast().to_bits()).then(|| IpAddr::V4(address.into()))?
            }
            IpNet::V6(range) => IpAddr::V6(range.network().to_bits().checked_add(offset)?.into()),
        };
        self.0.contains(&address).then_some(address)
    }

    fn offset(&self, address: IpAddr) -> Option<u128> {
        match (self.0, address) {
            (IpNet::V4(range), IpAddr::V4(address)) => {
                address.to_bits().checked_sub(range.network().to_bits()).map(u128::from)
            }
            (IpNet::V6(range), IpAddr::V6(address)) => address.to_bits().checked_sub(range.network().to_bits()),
            (IpNet::V4(_), IpAddr::V6(_)) | (IpNet::V6(_), IpAddr::V4(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(range: &str) -> Pool {
        Pool::new(range.parse().unwrap())
    }

    fn lowest(range: &str, taken: &[&str]) -> Option<String> {
        let taken = taken.iter().map(|address| address.parse().unwrap()).collect();
        pool(range).lowest_free(&taken).map(|address| address.to_string())
    }

    #[test]
    fn the_first_sixteen_are_reserved() {
        assert_eq!(pool("100.80.0.0/16").api().unwrap().to_string(), "100.80.0.1");
        assert_eq!(lowest("100.80.0.0/16", &[]).unwrap(), "100.80.0.17");
        assert_eq!(pool("fd00::/64").api().unwrap().to_string(), "fd00::1");
        assert_eq!(lowest("fd00::/64", &[]).unwrap(), "fd00::11");
        assert!(!pool("100.80.0.0/16").holds("100.80.0.16".parse().unwrap()));
        assert!(pool("100.80.0.0/16").holds("100.80.0.17".parse().unwrap()));
        assert!(!pool("100.80.0.0/16").holds("100.80.255.255".parse().unwrap()));
        assert!(!pool("100.80.0.0/16").holds("100.81.0.17".parse().unwrap()));
        assert!(!pool("100.80.0.0/16").holds("fd00::11".parse().unwrap()));
    }

    #[test]
    fn the_lowest_free_address_is_allocated() {
        assert_eq!(lowest("100.80.0.0/16", &["100.80.0.17", "100.80.0.19"]).unwrap(), "100.80.0.18");
    }

    #[test]
    fn a_range_ends_before_its_broadcast() {
        assert_eq!(lowest("100.80.0.0/27", &[]).unwrap(), "100.80.0.17");
        let all: Vec<String> = (17..31).map(|last| format!("100.80.0.{last}")).collect();
        assert_eq!(lowest("100.80.0.0/27", &all.iter().map(String::as_str).collect::<Vec<_>>()), None);
        assert!(!pool("100.80.0.0/28").has_room());
        assert!(pool("255.255.255.0/24").has_room());
    }

    proptest! {
        #[test]
        fn an_allocated_address_is_free_and_in_the_range(taken in prop::collection::btree_set(0_u32..64, 0..40)) {
            let pool = pool("100.80.0.0/26");
            let taken: BTreeSet<IpAddr> = taken.into_iter().map(|n| IpAddr::V4((0x6450_0000 + n).into())).collect();
            match pool.lowest_free(&taken) {
                Some(address) => prop_assert!(pool.holds(address) && !taken.contains(&address)),
                None => prop_assert!((17..63).all(|n: u32| taken.contains(&IpAddr::V4((0x6450_0000 + n).into())))),
            }
        }
    }
}
