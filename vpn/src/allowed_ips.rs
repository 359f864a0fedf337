//! Which peer an inner address belongs to: longest prefix first (WireGuard's "cryptokey routing").

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

/// Prefixes, each owned by one `T`.
///
/// One hash lookup for each prefix length in use, the longest first. Tables of VPNs hold one or two lengths and
/// thousands of prefixes, where this is two memory accesses and a trie would be a dozen.
#[derive(Debug, Clone)]
pub struct AllowedIps<T> {
    owners: HashMap<IpNet, T>,
    v4_lengths: BTreeMap<u8, usize>,
    v6_lengths: BTreeMap<u8, usize>,
}

impl<T> Default for AllowedIps<T> {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            v4_lengths: BTreeMap::new(),
            v6_lengths: BTreeMap::new(),
        }
    }
}

impl<T: Copy + PartialEq> AllowedIps<T> {
    /// Gives `prefix` to `owner`, and returns whom it was taken from. Host bits of `prefix` mean nothing.
    pub fn insert(&mut self, prefix: IpNet, owner: T) -> Option<T> {
        let prefix = prefix.trunc();
        let before = self.owners.insert(prefix, owner);
        if before.is_none() {
            *self
                .lengths_mut(prefix)
                .entry(prefix.prefix_len())
                .or_default() += 1;
        }
        before
    }

    /// Takes `prefix` from `owner`. What another one holds by now stays with that one.
    pub fn remove(&mut self, prefix: IpNet, owner: T) {
        let prefix = prefix.trunc();
        if self.owners.get(&prefix) != Some(&owner) {
            return;
        }
        self.owners.remove(&prefix);
        let length = prefix.prefix_len();
        let lengths = self.lengths_mut(prefix);
        if let Some(count) = lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&length);
            }
        }
    }

    /// The owner of the longest prefix that holds `address`.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<T> {
        let lengths = if address.is_ipv4() {
            &self.v4_lengths
        } else {
            &self.v6_lengths
        };
        lengths.keys().rev().find_map(|&length| {
            let prefix = IpNet::new(address, length).ok()?.trunc();
            self.owners.get(&prefix).copied()
        })
    }

    fn lengths_mut(&mut self, prefix: IpNet) -> &mut BTreeMap<u8, usize> {
        match prefix {
            IpNet::V4(_) => &mut self.v4_lengths,
            IpNet::V6(_) => &mut self.v6_lengths,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn prefix() -> impl Strategy<Value = IpNet> {
        // Few distinct bits, so that prefixes nest and collide.
        let v4 = (0..16u32, 0..=32u8)
            .prop_map(|(bits, length)| (IpAddr::from(Ipv4Addr::from(bits << 28 | bits)), length));
        let v6 = (0..16u128, 0..=128u8)
            .prop_map(|(bits, length)| (IpAddr::from(Ipv6Addr::from(bits << 124 | bits)), length));
        prop_oneof![v4, v6].prop_map(|(address, length)| IpNet::new(address, length).unwrap())
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(IpNet, u8),
        Remove(IpNet, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (prefix(), 0..3u8).prop_map(|(prefix, owner)| Step::Insert(prefix, owner)),
            (prefix(), 0..3u8).prop_map(|(prefix, owner)| Step::Remove(prefix, owner)),
        ]
    }

    proptest! {
        /// The reference is a list that is searched from end to end.
        #[test]
        fn it_finds_what_a_search_of_all_prefixes_finds(steps in proptest::collection::vec(step(), 0..60), probes in proptest::collection::vec(prefix(), 20)) {
            let mut table = AllowedIps::default();
            let mut reference: Vec<(IpNet, u8)> = Vec::new();
            for step in steps {
                match step {
                    Step::Insert(prefix, owner) => {
                        table.insert(prefix, owner);
                        reference.retain(|(known, _)| *known != prefix.trunc());
                        reference.push((prefix.trunc(), owner));
                    }
                    Step::Remove(prefix, owner) => {
                        table.remove(prefix, owner);
                        reference.retain(|known| *known != (prefix.trunc(), owner));
                    }
                }
            }
            for probe in probes {
                let expected = reference
                    .iter()
                    .filter(|(prefix, _)| prefix.contains(&probe.addr()))
                    .max_by_key(|(prefix, _)| prefix.prefix_len())
                    .map(|(_, owner)| *owner);
                prop_assert_eq!(table.owner(probe.addr()), expected);
            }
        }
    }
}
