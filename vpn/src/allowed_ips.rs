//! Maps an inner address to the peer that owns it: longest prefix first (WireGuard's "cryptokey routing").

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

/// Prefixes, each owned by one `T`.
///
/// A lookup needs one hash lookup for each prefix length in use, the longest first. Tables of VPNs have one or two lengths and
/// thousands of prefixes. For them this costs two memory accesses, where a trie would need a dozen.
#[derive(Debug, Clone)]
pub struct AllowedIps<T> {
    v4: PrefixTable<T>,
    v6: PrefixTable<T>,
}

/// Owners by prefix length, then by the bits of the prefix, shifted right so that the last bit of the prefix is bit 0.
type PrefixTable<T> = BTreeMap<u8, HashMap<u128, T>>;

impl<T> Default for AllowedIps<T> {
    fn default() -> Self {
        Self { v4: PrefixTable::new(), v6: PrefixTable::new() }
    }
}

impl<T: Copy + PartialEq> AllowedIps<T> {
    /// Makes `owner` the owner of `prefix`, and returns the previous owner. Host bits of `prefix` are ignored.
    pub fn insert(&mut self, prefix: IpNet, owner: T) -> Option<T> {
        let length = prefix.prefix_len();
        let owners = self.family_mut(prefix).entry(length).or_default();
        owners.insert(leading_bits(prefix.addr(), length), owner)
    }

    /// Removes `prefix` if `owner` still owns it. If another owner has it by now, nothing changes.
    pub fn remove(&mut self, prefix: IpNet, owner: T) {
        let length = prefix.prefix_len();
        let bits = leading_bits(prefix.addr(), length);
        let family = self.family_mut(prefix);
        let Some(owners) = family.get_mut(&length) else {
            return;
        };
        if owners.get(&bits) == Some(&owner) {
            owners.remove(&bits);
        }
        if owners.is_empty() {
            family.remove(&length);
        }
    }

    /// Returns the owner of the longest prefix that contains `address`.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<T> {
        let family = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        let mut longest_first = family.iter().rev();
        longest_first.find_map(|(length, owners)| owners.get(&leading_bits(address, *length)).copied())
    }

    fn family_mut(&mut self, prefix: IpNet) -> &mut PrefixTable<T> {
        match prefix {
            IpNet::V4(_) => &mut self.v4,
            IpNet::V6(_) => &mut self.v6,
        }
    }
}

fn leading_bits(address: IpAddr, length: u8) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), u32::BITS),
        IpAddr::V6(address) => (u128::from(address), u128::BITS),
    };
    // A shift by the full width (prefix length 0 of IPv6) overflows: no bits are left.
    bits.checked_shr(width - u32::from(length)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn prefix() -> impl Strategy<Value = IpNet> {
        // Only a few distinct bits vary, so that prefixes nest and collide.
        let v4 =
            (0..16u32, 0..=32u8).prop_map(|(bits, length)| (IpAddr::from(Ipv4Addr::from(bits << 28 | bits)), length));
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
