//! Decides which addresses a peer has, lacks, and may not have. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use keelway_api::{
    condition::{self, ConditionStatus, ConditionValue},
    worker::{AddressClaim, PEER_READY, Tombstone, WireGuardPeer, WireGuardPeerStatus, named_address},
};
use kube::ResourceExt;

use super::Pool;

/// Whether a peer may have addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PeerEligibility {
    /// Its name or key was evicted. The peer is to be deleted.
    Evicted,
    /// An older peer has the same key.
    KeyTaken(String),
    /// It may have addresses, and has these.
    Good(Vec<IpAddr>),
}

/// Decides whether a peer may have addresses.
pub(crate) fn peer_eligibility<'a>(
    peer: &WireGuardPeer,
    peers: impl IntoIterator<Item = &'a WireGuardPeer>,
    tombstones: &[Tombstone],
) -> PeerEligibility {
    let name = peer.name_any();
    let key = &peer.spec.public_key;
    if tombstones
        .iter()
        .any(|tombstone| tombstone.name_any() == name || tombstone.spec.public_key.as_ref() == Some(key))
    {
        return PeerEligibility::Evicted;
    }
    let given = assigned_addresses(peer);
    let older = |other: &WireGuardPeer| (lacks(other), age(other)) < (lacks(peer), age(peer));
    let first =
        peers.into_iter().find(|other| other.spec.public_key == *key && other.name_any() != name && older(other));
    match first {
        Some(other) => PeerEligibility::KeyTaken(other.name_any()),
        None => PeerEligibility::Good(given),
    }
}

/// Peers with addresses precede those without.
fn lacks(peer: &WireGuardPeer) -> bool {
    assigned_addresses(peer).is_empty()
}

fn age(peer: &WireGuardPeer) -> (Option<&Time>, Option<&str>) {
    (peer.metadata.creation_timestamp.as_ref(), peer.metadata.name.as_deref())
}

fn assigned_addresses(peer: &WireGuardPeer) -> Vec<IpAddr> {
    peer.status.iter().flat_map(|status| &status.addresses).filter_map(|address| address.parse().ok()).collect()
}

/// Whether a claim belongs to this peer.
pub(crate) fn is_of(claim: &AddressClaim, peer: &WireGuardPeer) -> bool {
    claim.spec.node == peer.name_any() && claim.spec.public_key == peer.spec.public_key
}

/// Returns the address of this pool that is already claimed for the peer: an earlier one, or one of another replica a moment ago.
pub(crate) fn claimed<'a>(
    peer: &WireGuardPeer,
    pool: &Pool,
    claims: impl IntoIterator<Item = &'a AddressClaim>,
) -> Option<IpAddr> {
    let mine = claims.into_iter().filter(|claim| is_of(claim, peer));
    mine.filter_map(|claim| named_address(&claim.name_any())).filter(|address| pool.holds(*address)).min()
}

/// Returns the addresses that must not be assigned, including those of peers whose claim was deleted by a user.
pub(crate) fn reserved_addresses<'a>(
    claims: impl IntoIterator<Item = &'a AddressClaim>,
    peers: impl IntoIterator<Item = &'a WireGuardPeer>,
    tombstones: &[Tombstone],
) -> BTreeSet<IpAddr> {
    let claimed = claims.into_iter().filter_map(|claim| named_address(&claim.name_any()));
    let held = peers.into_iter().flat_map(assigned_addresses);
    let resting = tombstones.iter().flat_map(|tombstone| &tombstone.spec.addresses);
    claimed.chain(held).chain(resting.filter_map(|address| address.parse().ok())).collect()
}

/// The most reserved addresses of one range for one name, so that a worker that rejoins with new keys does not use up the range.
const RESTING: usize = 4;

/// Whether the limit of reserved addresses for the peer's name is reached.
pub(crate) fn is_spent<'a>(
    peer: &WireGuardPeer,
    pool: &Pool,
    claims: impl IntoIterator<Item = &'a AddressClaim>,
) -> bool {
    let name = peer.name_any();
    let of_others = claims.into_iter().filter(|claim| claim.spec.node == name && !is_of(claim, peer));
    let addresses = of_others.filter_map(|claim| named_address(&claim.name_any()));
    addresses.filter(|address| pool.holds(*address)).count() >= RESTING
}

/// Returns the ranges of a peer's pods: those of its Node. Without a Node, it returns the earlier ranges that no other Node has.
pub(crate) fn pods(had: &[String], node: &[String], others: &BTreeSet<String>) -> Vec<String> {
    if !node.is_empty() {
        return node.to_vec();
    }
    had.iter().filter(|range| !others.contains(*range)).cloned().collect()
}

/// The result of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AllocationOutcome {
    /// The peer has one address of each range.
    Given(Vec<IpAddr>),
    /// An older peer has the same key.
    KeyTaken(String),
    /// A range has no free address.
    Exhausted,
    /// The limit of reserved addresses for the peer's name is reached.
    Spent,
}

impl AllocationOutcome {
    fn verdict(&self) -> ConditionValue {
        let (status, reason, message) = match self {
            Self::Given(_) => (ConditionStatus::True, "Allocated", "the peer has its addresses".to_owned()),
            Self::KeyTaken(by) => (
                ConditionStatus::False,
                "KeyTaken",
                format!("{by} has the same public key; generate a new key on this worker and create its peer again"),
            ),
            Self::Exhausted => (
                ConditionStatus::False,
                "RangeExhausted",
                "the VPN has no free address; remove workers that no longer exist, and wait until their addresses are released".to_owned(),
            ),
            Self::Spent => (
                ConditionStatus::False,
                "TooManyKeys",
                "workers of this name recently had too many keys; use another name, or wait until their addresses are released"
                    .to_owned(),
            ),
        };
        ConditionValue { status, reason: reason.to_owned(), message }
    }
}

/// Builds the status of a peer.
pub(crate) fn status(
    peer: &WireGuardPeer,
    outcome: &AllocationOutcome,
    pods: Vec<String>,
    now: &Time,
) -> WireGuardPeerStatus {
    let mut status = peer.status.clone().unwrap_or_default();
    if let AllocationOutcome::Given(addresses) = outcome {
        status.addresses = addresses.iter().map(ToString::to_string).collect();
    }
    status.pod_cidrs = pods;
    condition::set(&mut status.conditions, PEER_READY, outcome.verdict(), peer.metadata.generation, now);
    status
}

/// The next step for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimStep {
    /// Leave the claim unchanged.
    Keep,
    /// End its reservation, because its peer exists.
    Wake,
    /// Start its reservation, because its peer is deleted. Until it ends, no other peer gets the address.
    Rest,
    /// Wait until the reservation ends.
    Await(Time),
    /// Delete the claim.
    Delete,
}

/// Decides the next step for a claim. `peer` is the peer with its name.
pub(crate) fn claim_step(claim: &AddressClaim, peer: Option<&WireGuardPeer>, now: &Time) -> ClaimStep {
    let address = named_address(&claim.name_any());
    match (peer.filter(|peer| is_of(claim, peer)), &claim.spec.rests_until) {
        (Some(peer), rests) => {
            let given = assigned_addresses(peer);
            let has_another = address.is_some_and(|address| {
                !given.contains(&address) && given.iter().any(|other| other.is_ipv4() == address.is_ipv4())
            });
            match (has_another, rests) {
                // This is a second claim for one peer, whose address the peer never received.
                (true, _) => ClaimStep::Delete,
                (false, Some(_)) => ClaimStep::Wake,
                (false, None) => ClaimStep::Keep,
            }
        }
        (None, None) => ClaimStep::Rest,
        (None, Some(until)) if until <= now => ClaimStep::Delete,
        (None, Some(until)) => ClaimStep::Await(until.clone()),
    }
}
