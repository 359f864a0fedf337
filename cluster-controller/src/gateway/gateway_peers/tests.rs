use keelway_vpn::PrivateKey;
use proptest::prelude::*;

use super::*;

fn key(number: u8) -> PublicKey {
    PrivateKey::from_bytes([number; 32]).public()
}

fn candidate(number: u8, addresses: &[&str], pods: &[&str]) -> Candidate {
    Candidate {
        name: format!("w{number}"),
        created: Some(Timestamp::from_second(i64::from(number)).unwrap()),
        public_key: key(number).to_string(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        pod_cidrs: pods.iter().map(ToString::to_string).collect(),
    }
}

fn bounds() -> PeerBounds {
    PeerBounds {
        addresses: vec!["100.80.0.0/16".parse().unwrap(), "fd80::/64".parse().unwrap()],
        pods: vec!["10.244.0.0/16".parse().unwrap()],
        reserved: ["100.80.0.1".parse().unwrap(), "10.244.9.9".parse().unwrap()].into(),
        gateways: [key(200)].into(),
    }
}

fn owner(members: &GatewayPeers, address: &str) -> Option<String> {
    let owner = members.owner(address.parse().unwrap())?;
    Some(members.by_key[&owner].name.clone())
}

#[test]
fn a_peer_has_its_addresses_and_pod_ranges() {
    let all = [candidate(7, &["100.80.0.7", "fd80::7"], &["10.244.3.0/24"]), candidate(8, &["100.80.0.8"], &[])];
    let (members, faults) = validate_candidates(&all, &bounds());
    assert_eq!(faults, BTreeSet::new());
    for (address, expected) in [
        ("100.80.0.7", Some("w7")),
        ("fd80::7", Some("w7")),
        ("10.244.3.0", Some("w7")),
        ("10.244.3.255", Some("w7")),
        ("100.80.0.8", Some("w8")),
        ("10.244.4.0", None),
        ("10.244.2.255", None),
        ("100.80.0.9", None),
        ("100.80.0.1", None),
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:100.80.0.7", None),
    ] {
        assert_eq!(owner(&members, address).as_deref(), expected, "{address}");
    }
}

#[test]
fn without_an_address_there_is_no_peer_yet() {
    let (members, faults) = validate_candidates(&[candidate(7, &[], &["10.244.3.0/24"])], &bounds());
    assert!(members.by_key.is_empty() && faults.is_empty());
    assert_eq!(owner(&members, "10.244.3.1"), None);
}

#[test]
fn the_older_of_two_conflicting_peers_wins() {
    let younger = candidate(8, &["100.80.0.7", "100.80.0.8"], &["10.244.3.128/25", "10.244.4.0/24"]);
    let mut same_key = candidate(9, &["100.80.0.9"], &[]);
    same_key.public_key = key(7).to_string();
    let mut ageless = candidate(1, &["100.80.0.8"], &[]);
    ageless.created = None;
    let all = [ageless, same_key, younger, candidate(7, &["100.80.0.7"], &["10.244.3.0/24"])];
    let (members, faults) = validate_candidates(&all, &bounds());
    assert_eq!(owner(&members, "100.80.0.7").as_deref(), Some("w7"));
    assert_eq!(owner(&members, "10.244.3.200").as_deref(), Some("w7"));
    assert_eq!(owner(&members, "100.80.0.8").as_deref(), Some("w8"));
    assert_eq!(owner(&members, "10.244.4.1").as_deref(), Some("w8"));
    let blamed: Vec<&str> = faults.iter().map(|fault| fault.name.as_str()).collect();
    assert_eq!(blamed, ["w1", "w1", "w8", "w8", "w9"]);
}

#[test]
fn invalid_keys_addresses_and_ranges_are_ignored() {
    let gateway = Candidate { public_key: key(200).to_string(), ..candidate(1, &["100.80.0.11"], &[]) };
    let keyless = Candidate { public_key: "AAAA".to_owned(), ..candidate(2, &["100.80.0.12"], &[]) };
    for (candidate, problem) in [
        (gateway, "the key of a gateway"),
        (keyless, "32 bytes"),
        (candidate(3, &["10.0.0.1"], &[]), "outside the cluster's VPN"),
        (candidate(3, &["127.0.0.1"], &[]), "outside the cluster's VPN"),
        (candidate(3, &["100.80.0.1"], &[]), "reserved"),
        (candidate(3, &["100.80.0.0/16"], &[]), "not a valid address"),
        (candidate(3, &["100.80.0.3"], &["10.0.0.0/24"]), "outside the cluster's pod ranges"),
        (candidate(3, &["100.80.0.3"], &["10.0.0.0/8"]), "outside the cluster's pod ranges"),
        (candidate(3, &["100.80.0.3"], &["0.0.0.0/0"]), "outside the cluster's pod ranges"),
        (candidate(3, &["100.80.0.3"], &["10.244.9.0/24"]), "reserved"),
        (candidate(3, &["100.80.0.3"], &["10.244.0.0"]), "not a valid range"),
        (candidate(3, &["100.80.0.3"], &["10.244.1.0/24", "10.244.1.0/25"]), "this peer"),
        (candidate(3, &["100.80.0.3", "100.80.0.3"], &[]), ""),
    ] {
        let (_, faults) = validate_candidates(std::slice::from_ref(&candidate), &bounds());
        let problems: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(
            problem.is_empty() || problems.iter().any(|fault| fault.contains(problem)),
            "{candidate:?}: {problems:?}"
        );
    }
}

prop_compose! {
    fn anybody()(
        number in 0..9u8,
        created in proptest::option::of(0..3i64),
        addresses in proptest::collection::vec(0..6u8, 0..3),
        pods in proptest::collection::vec((0..16u8, 24..=28u8), 0..3),
    ) -> Candidate {
        let addresses: Vec<String> = addresses.iter().map(|last| format!("100.80.0.{last}")).collect();
        let pods: Vec<String> = pods.iter().map(|(last, length)| format!("10.244.0.{}/{length}", last * 16)).collect();
        Candidate {
            created: created.map(|second| Timestamp::from_second(second).unwrap()),
            public_key: key(number % 7).to_string(),
            addresses,
            pod_cidrs: pods,
            ..candidate(number, &[], &[])
        }
    }
}

proptest! {
    /// The reference is a list that is searched from end to end.
    #[test]
    fn nothing_has_two_owners_and_order_does_not_matter(all in proptest::collection::vec(anybody(), 0..8)) {
        let (members, faults) = validate_candidates(&all, &bounds());
        let held: Vec<(PublicKey, IpNet)> = members.by_key.iter()
            .flat_map(|(key, member)| member.prefixes.iter().map(|prefix| (*key, *prefix)))
            .collect();
        for (at, (_, one)) in held.iter().enumerate() {
            for (_, other) in &held[at + 1..] {
                prop_assert!(!one.contains(other) && !other.contains(one), "{one} and {other}");
            }
        }
        for last in 0..=255u8 {
            for address in [IpAddr::from([10, 244, 0, last]), IpAddr::from([100, 80, 0, last])] {
                let expected = held.iter().find(|(_, prefix)| prefix.contains(&address)).map(|(key, _)| *key);
                prop_assert_eq!(members.owner(address), expected);
            }
        }
        let mut reversed = all;
        reversed.reverse();
        // In a cluster, names are unique. Here they need not be, and the order of equal names would matter.
        reversed.sort_by(|one, other| one.name.cmp(&other.name));
        reversed.dedup_by(|one, other| one.name == other.name);
        let (once, _) = validate_candidates(&reversed, &bounds());
        reversed.reverse();
        let (again, _) = validate_candidates(&reversed, &bounds());
        prop_assert_eq!(once.by_key, again.by_key);
        drop(faults);
    }
}
