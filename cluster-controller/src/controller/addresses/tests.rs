use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use keelway_api::{
    condition,
    worker::{
        AddressClaim, AddressClaimSpec, PEER_READY, Tombstone, TombstoneSpec, WireGuardPeer, WireGuardPeerSpec,
        WireGuardPeerStatus,
    },
};

use super::{
    Pool,
    decision::{
        AllocationOutcome, ClaimStep, PeerEligibility, claim_step, claimed, is_spent, peer_eligibility, pods,
        reserved_addresses, status,
    },
};

fn time(seconds: i64) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap())
}

fn peer(name: &str, key: &str, age: i64, addresses: &[&str]) -> WireGuardPeer {
    let mut peer = WireGuardPeer::new(name, WireGuardPeerSpec { public_key: key.to_owned() });
    peer.metadata.creation_timestamp = Some(time(age));
    peer.metadata.generation = Some(1);
    let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
    peer.status = Some(WireGuardPeerStatus { addresses, ..WireGuardPeerStatus::default() });
    peer
}

fn claim(name: &str, node: &str, key: &str, rests_until: Option<Time>) -> AddressClaim {
    AddressClaim::new(name, AddressClaimSpec { node: node.to_owned(), public_key: key.to_owned(), rests_until })
}

fn tombstone(name: &str, key: Option<&str>, addresses: &[&str]) -> Tombstone {
    let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
    Tombstone::new(name, TombstoneSpec { public_key: key.map(str::to_owned), addresses, until: time(100) })
}

fn pool() -> Pool {
    Pool::new("100.80.0.0/16".parse().unwrap())
}

#[test]
fn a_peer_with_an_evicted_name_or_key_is_evicted() {
    let this = peer("w1", "k1", 1, &[]);
    assert_eq!(peer_eligibility(&this, [], &[tombstone("w1", None, &[])]), PeerEligibility::Evicted);
    assert_eq!(peer_eligibility(&this, [], &[tombstone("w2", Some("k1"), &[])]), PeerEligibility::Evicted);
    assert_eq!(peer_eligibility(&this, [], &[tombstone("w2", Some("k2"), &[])]), PeerEligibility::Good(vec![]));
}

#[test]
fn a_key_belongs_to_the_oldest_peer() {
    let (old, new) = (peer("w2", "k", 1, &[]), peer("w1", "k", 2, &[]));
    let both = [old.clone(), new.clone()];
    assert_eq!(peer_eligibility(&new, &both, &[]), PeerEligibility::KeyTaken("w2".to_owned()));
    assert_eq!(peer_eligibility(&old, &both, &[]), PeerEligibility::Good(vec![]));
    // A peer with addresses keeps them, whatever the creation times are.
    let given = peer("w3", "k", 3, &["100.80.0.17"]);
    let all = [old.clone(), given.clone()];
    assert_eq!(peer_eligibility(&old, &all, &[]), PeerEligibility::KeyTaken("w3".to_owned()));
    // With equal creation times, the first name precedes.
    let (a, b) = (peer("a", "k", 1, &[]), peer("b", "k", 1, &[]));
    let twins = [a.clone(), b.clone()];
    assert_eq!(peer_eligibility(&a, &twins, &[]), PeerEligibility::Good(vec![]));
    assert_eq!(peer_eligibility(&b, &twins, &[]), PeerEligibility::KeyTaken("a".to_owned()));
}

#[test]
fn claims_and_tombstones_reserve_addresses() {
    let claims = [claim("v4-64500011", "w1", "k1", None), claim("v4-64500012", "w2", "k2", Some(time(9)))];
    // A user deleted the claim, and the worker continues to run.
    let peers = [peer("w4", "k4", 1, &["100.80.0.20"])];
    let taken = reserved_addresses(&claims, &peers, &[tombstone("w3", None, &["100.80.0.19"])]);
    let expected: BTreeSet<IpAddr> =
        ["100.80.0.17", "100.80.0.18", "100.80.0.19", "100.80.0.20"].map(|address| address.parse().unwrap()).into();
    assert_eq!(taken, expected);
    assert_eq!(pool().lowest_free(&taken).unwrap().to_string(), "100.80.0.21");
}

#[test]
fn a_name_reserves_few_addresses_with_new_keys() {
    let claims: Vec<AddressClaim> =
        (0..4).map(|n| claim(&format!("v4-6450001{}", n + 1), "w1", &format!("k{n}"), Some(time(9)))).collect();
    assert!(is_spent(&peer("w1", "new", 1, &[]), &pool(), &claims));
    assert!(!is_spent(&peer("w1", "new", 1, &[]), &pool(), &claims[1..]));
    // One of the claims belongs to this peer, and claims of other names do not count.
    assert!(!is_spent(&peer("w1", "k0", 1, &[]), &pool(), &claims));
    assert!(!is_spent(&peer("w2", "new", 1, &[]), &pool(), &claims));
}

#[test]
fn a_peer_gets_its_previous_address_again() {
    let claims = [claim("v4-64500012", "w1", "k1", Some(time(9))), claim("v4-64500011", "w1", "other", None)];
    let found = claimed(&peer("w1", "k1", 1, &[]), &pool(), &claims);
    assert_eq!(found.unwrap().to_string(), "100.80.0.18");
    assert_eq!(claimed(&peer("w2", "k1", 1, &[]), &pool(), &claims), None);
}

#[test]
fn a_claim_without_a_peer_is_kept_and_then_deleted() {
    let now = time(10);
    let (this, other) = (peer("w1", "k1", 1, &["100.80.0.17"]), peer("w1", "k2", 1, &[]));
    let fresh = claim("v4-64500011", "w1", "k1", None);
    assert_eq!(claim_step(&fresh, Some(&this), &now), ClaimStep::Keep);
    assert_eq!(claim_step(&fresh, None, &now), ClaimStep::Rest);
    // Another worker has the same name.
    assert_eq!(claim_step(&fresh, Some(&other), &now), ClaimStep::Rest);
    let resting = |until| claim("v4-64500011", "w1", "k1", Some(time(until)));
    assert_eq!(claim_step(&resting(11), None, &now), ClaimStep::Await(time(11)));
    assert_eq!(claim_step(&resting(10), None, &now), ClaimStep::Delete);
    assert_eq!(claim_step(&resting(10), Some(&this), &now), ClaimStep::Wake);
}

#[test]
fn a_second_claim_for_one_peer_is_deleted() {
    let this = peer("w1", "k1", 1, &["100.80.0.17"]);
    let now = time(10);
    assert_eq!(claim_step(&claim("v4-64500012", "w1", "k1", None), Some(&this), &now), ClaimStep::Delete);
    // The status of the peer may be slightly outdated.
    let before = peer("w1", "k1", 1, &[]);
    assert_eq!(claim_step(&claim("v4-64500012", "w1", "k1", None), Some(&before), &now), ClaimStep::Keep);
    // A claim of another family is not a second claim.
    let other_family = claim("v6-fd000000000000000000000000000011", "w1", "k1", None);
    assert_eq!(claim_step(&other_family, Some(&this), &now), ClaimStep::Keep);
}

#[test]
fn ranges_of_pods_follow_the_node() {
    let had = ["10.244.1.0/24".to_owned()];
    let node = ["10.244.2.0/24".to_owned()];
    let nobody = BTreeSet::new();
    assert_eq!(pods(&[], &node, &nobody), node);
    assert_eq!(pods(&had, &node, &nobody), node);
    assert_eq!(pods(&had, &[], &nobody), had);
    assert_eq!(pods(&had, &[], &had.iter().cloned().collect()), Vec::<String>::new());
}

#[test]
fn the_status_reports_the_outcome() {
    let this = peer("w1", "k1", 1, &[]);
    let given = AllocationOutcome::Given(vec!["100.80.0.17".parse().unwrap()]);
    let written = status(&this, &given, vec!["10.244.1.0/24".to_owned()], &time(5));
    assert_eq!(written.addresses, ["100.80.0.17"]);
    assert_eq!(written.pod_cidrs, ["10.244.1.0/24"]);
    assert!(condition::is_true(&written.conditions, PEER_READY));
    assert_eq!(written.conditions[0].observed_generation, Some(1));

    // The same outcome later leaves the status unchanged.
    let mut again = this.clone();
    again.status = Some(written.clone());
    assert_eq!(status(&again, &given, written.pod_cidrs.clone(), &time(6)), written);

    for outcome in
        [AllocationOutcome::Exhausted, AllocationOutcome::Spent, AllocationOutcome::KeyTaken("w2".to_owned())]
    {
        let refused = status(&this, &outcome, vec![], &time(5));
        assert!(refused.addresses.is_empty());
        assert!(!condition::is_true(&refused.conditions, PEER_READY));
    }
}
