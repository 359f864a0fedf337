//! Decides which peers there are, and which prefixes they own. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use keelway_vpn::PublicKey;
use serde::{Deserialize, Serialize};

/// A WireGuardPeer object of the cluster, before validation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Candidate {
    /// The node's name.
    pub(crate) name: String,
    /// The creation time of the object.
    pub(crate) created: Option<Timestamp>,
    /// The public key that the worker wrote.
    pub(crate) public_key: String,
    /// The addresses that the cluster-controller assigned.
    pub(crate) addresses: Vec<String>,
    /// The pod ranges of its Node.
    #[serde(rename = "podCIDRs")]
    pub(crate) pod_cidrs: Vec<String>,
}

/// The limits for peers.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerBounds {
    /// Ranges of nodes' addresses.
    pub(crate) addresses: Vec<IpNet>,
    /// Ranges of pod ranges.
    pub(crate) pods: Vec<IpNet>,
    /// Addresses that no peer may have: the gateways' own, and those of the API.
    pub(crate) reserved: BTreeSet<IpAddr>,
    /// Keys that no peer may have: the gateways' own.
    pub(crate) gateways: BTreeSet<PublicKey>,
}

/// A valid peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GatewayPeer {
    /// The node's name.
    pub(crate) name: String,
    /// The prefixes that it owns.
    pub(crate) prefixes: BTreeSet<IpNet>,
}

/// Why a candidate, or a part of it, is ignored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CandidateFault {
    /// The node's name.
    pub(crate) name: String,
    /// What is ignored, and why.
    pub(crate) problem: String,
}

impl fmt::Display for CandidateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WireGuardPeer {}: {}", self.name, self.problem)
    }
}

/// The valid peers of the cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct GatewayPeers {
    pub(crate) by_key: BTreeMap<PublicKey, GatewayPeer>,
    /// Prefixes by their first address, with their last address and owner. No two of them overlap.
    holdings: BTreeMap<IpAddr, (IpAddr, PublicKey)>,
}

impl GatewayPeers {
    /// Returns the owner of an address.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<PublicKey> {
        let (_, (last, owner)) = self.holdings.range(..=address).next_back()?;
        // IPv4 addresses sort before IPv6 addresses, so that no prefix extends from one family into the other.
        (address <= *last).then_some(*owner)
    }

    fn holder(&self, prefix: &IpNet) -> Option<PublicKey> {
        let (first, last) = (prefix.network(), prefix.broadcast());
        self.owner(first).or_else(|| self.holdings.range(first..=last).next().map(|(_, (_, owner))| *owner))
    }
}

/// Finds the valid peers among candidates. If two claim the same key or prefix, the older one gets it. What is ignored is returned as faults.
pub(crate) fn validate_candidates(
    candidates: &[Candidate],
    bounds: &PeerBounds,
) -> (GatewayPeers, BTreeSet<CandidateFault>) {
    let mut oldest_first: Vec<&Candidate> = candidates.iter().collect();
    oldest_first.sort_by_key(|candidate| (candidate.created.is_none(), candidate.created, &candidate.name));
    let mut judge = CandidateValidator { bounds, members: GatewayPeers::default(), faults: BTreeSet::new() };
    for candidate in oldest_first {
        judge.admit(candidate);
    }
    (judge.members, judge.faults)
}

struct CandidateValidator<'a> {
    bounds: &'a PeerBounds,
    members: GatewayPeers,
    faults: BTreeSet<CandidateFault>,
}

impl CandidateValidator<'_> {
    fn add_fault(&mut self, candidate: &Candidate, problem: String) {
        self.faults.insert(CandidateFault { name: candidate.name.clone(), problem });
    }

    fn admit(&mut self, candidate: &Candidate) {
        if candidate.addresses.is_empty() {
            // The cluster-controller has not assigned an address yet.
            return;
        }
        let key = match self.key(candidate) {
            Ok(key) => key,
            Err(problem) => return self.add_fault(candidate, problem),
        };
        let mut prefixes = BTreeSet::new();
        for address in &candidate.addresses {
            match self.address(address) {
                Ok(prefix) => _ = prefixes.insert(prefix),
                Err(problem) => self.add_fault(candidate, problem),
            }
        }
        if prefixes.is_empty() {
            return self.add_fault(candidate, "it has no valid address, so it is ignored".to_owned());
        }
        self.take(key, &prefixes);
        for range in &candidate.pod_cidrs {
            match self.pod_range(range) {
                Ok(prefix) => {
                    self.take(key, &BTreeSet::from([prefix]));
                    prefixes.insert(prefix);
                }
                Err(problem) => self.add_fault(candidate, problem),
            }
        }
        self.members.by_key.insert(key, GatewayPeer { name: candidate.name.clone(), prefixes });
    }

    fn take(&mut self, key: PublicKey, prefixes: &BTreeSet<IpNet>) {
        let held = prefixes.iter().map(|prefix| (prefix.network(), (prefix.broadcast(), key)));
        self.members.holdings.extend(held);
    }

    fn key(&self, candidate: &Candidate) -> Result<PublicKey, String> {
        let key: PublicKey = candidate.public_key.parse().map_err(|error| format!("spec.publicKey: {error}"))?;
        if self.bounds.gateways.contains(&key) {
            return Err("spec.publicKey is the key of a gateway".to_owned());
        }
        match self.members.by_key.get(&key) {
            Some(older) => Err(format!("spec.publicKey is also the key of {}, which is older", older.name)),
            None => Ok(key),
        }
    }

    fn address(&self, text: &str) -> Result<IpNet, String> {
        let address: IpAddr = text.parse().map_err(|_| format!("status.addresses: {text:?} is not a valid address"))?;
        if !self.bounds.addresses.iter().any(|range| range.contains(&address)) {
            return Err(format!("status.addresses: {address} is outside the cluster's VPN"));
        }
        if self.bounds.reserved.contains(&address) {
            return Err(format!("status.addresses: {address} is reserved"));
        }
        let prefix = IpNet::from(address);
        self.free(&prefix)
            .map_err(|owner| format!("status.addresses: {address} belongs to {owner}, which is older"))?;
        Ok(prefix)
    }

    fn pod_range(&self, text: &str) -> Result<IpNet, String> {
        let range: IpNet = text.parse().map_err(|_| format!("status.podCIDRs: {text:?} is not a valid range"))?;
        let range = range.trunc();
        if !self.bounds.pods.iter().any(|bound| bound.contains(&range)) {
            return Err(format!("status.podCIDRs: {range} is outside the cluster's pod ranges"));
        }
        if let Some(reserved) = self.bounds.reserved.iter().find(|reserved| range.contains(*reserved)) {
            return Err(format!("status.podCIDRs: {range} contains {reserved}, which is reserved"));
        }
        self.free(&range)
            .map_err(|owner| format!("status.podCIDRs: {range} overlaps a range of {owner}, which is older"))?;
        Ok(range)
    }

    fn free(&self, prefix: &IpNet) -> Result<(), String> {
        let Some(owner) = self.members.holder(prefix) else { return Ok(()) };
        // A candidate that names one address twice is not among the members yet.
        Err(self.members.by_key.get(&owner).map_or("this peer", |member| &member.name).to_owned())
    }
}

#[cfg(test)]
mod tests;
