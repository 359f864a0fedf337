//! What a peer has, lacks and may not have. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use keelway_api::{
    condition::{self, ConditionStatus, ConditionValue},
    worker::{AddressClaim, PEER_READY, Tombstone, WireGuardPeer, WireGuardPeerStatus, named_address},
};
use kube::ResourceExt;

use super::Pool;

/// How a peer stands among the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PeerEligibility {
    /// Its name or key was evicted: it goes.
    Evicted,
    /// An older peer has its key.
    KeyTaken(String),
    /// It may have addresses, and has those.
    Good(Vec<IpAddr>),
}

/// How a peer stands.
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

/// A peer that has addresses is before one that has none.
fn lacks(peer: &WireGuardPeer) -> bool {
    assigned_addresses(peer).is_empty()
}

fn age(peer: &WireGuardPeer) -> (Option<&Time>, Option<&str>) {
    (peer.metadata.creation_timestamp.as_ref(), peer.metadata.name.as_deref())
}

fn assigned_addresses(peer: &WireGuardPeer) -> Vec<IpAddr> {
    peer.status.iter().flat_map(|status| &status.addresses).filter_map(|address| address.parse().ok()).collect()
}

/// Whether a claim is this peer's.
pub(crate) fn is_of(claim: &AddressClaim, peer: &WireGuardPeer) -> bool {
    claim.spec.node == peer.name_any() && claim.spec.public_key == peer.spec.public_key
}

/// The address in this pool that is already claimed for the peer: it had it before, or another controller was here a moment ago.
pub(crate) fn claimed<'a>(
    peer: &WireGuardPeer,
    pool: &Pool,
    claims: impl IntoIterator<Item = &'a AddressClaim>,
) -> Option<IpAddr> {
    let mine = claims.into_iter().filter(|claim| is_of(claim, peer));
    mine.filter_map(|claim| named_address(&claim.name_any())).filter(|address| pool.holds(*address)).min()
}

/// The addresses that no peer may be given: also those of peers whose claim somebody deleted.
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

/// How many addresses of one range may rest for one name: whoever comes and goes with new keys leaves others some.
const RESTING: usize = 4;

/// Whether as many addresses rest for the peer's name as may.
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

/// The ranges of a peer's pods: those of its Node; while the Node is away, those that it had and that no other Node has.
pub(crate) fn pods(had: &[String], node: &[String], others: &BTreeSet<String>) -> Vec<String> {
    if !node.is_empty() {
        return node.to_vec();
    }
    had.iter().filter(|range| !others.contains(*range)).cloned().collect()
}

/// What became of a peer's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AllocationOutcome {
    /// It has one of each range.
    Given(Vec<IpAddr>),
    /// An older peer has its key.
    KeyTaken(String),
    /// A range has no free address.
    Exhausted,
    /// As many addresses rest for its name as may.
    Spent,
}

impl AllocationOutcome {
    fn verdict(&self) -> ConditionValue {
        let (status, reason, message) = match self {
            Self::Given(_) => (ConditionStatus::True, "Allocated", "the peer has its addresses".to_owned()),
            Self::KeyTaken(by) => (
                ConditionStatus::False,
                "KeyTaken",
                format!("{by} has the same public key: make a new key on this worker, and its peer anew"),
            ),
            Self::Exhausted => (
                ConditionStatus::False,
                "RangeExhausted",
                "no address of the VPN is free: remove workers that are gone, and wait until their addresses have rested".to_owned(),
            ),
            Self::Spent => (
                ConditionStatus::False,
                "TooManyKeys",
                "workers of this name had too many keys not long ago: take another name, or wait until their addresses have rested"
                    .to_owned(),
            ),
        };
        ConditionValue { status, reason: reason.to_owned(), message }
    }
}

/// The status that a peer is to have.
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

/// What is done about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimStep {
    /// It stays as it is.
    Keep,
    /// Its peer is there, so it does not rest.
    Wake,
    /// Its peer is gone: nobody else has the address before that time.
    Rest,
    /// It rests until then.
    Await(Time),
    /// Nobody has the address any more.
    Delete,
}

/// What is done about a claim whose peer, if there is one, is this.
pub(crate) fn claim_step(claim: &AddressClaim, peer: Option<&WireGuardPeer>, now: &Time) -> ClaimStep {
    let address = named_address(&claim.name_any());
    match (peer.filter(|peer| is_of(claim, peer)), &claim.spec.rests_until) {
        (Some(peer), rests) => {
            let given = assigned_addresses(peer);
            let has_another = address.is_some_and(|address| {
                !given.contains(&address) && given.iter().any(|other| other.is_ipv4() == address.is_ipv4())
            });
            match (has_another, rests) {
                // A second claim for one peer, which it was never given.
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
