use keelway_planner::{DatabaseSize, ListedMember, MemberReport};

use super::*;

/// Two voters, of which the first leads, and a learner.
fn store() -> StoreObservation {
    let names = ["etcd-0", "etcd-1", "etcd-2"];
    let listed = |id: u64, name: &str| {
        let member = ListedMember {
            name: name.to_owned(),
            peer_urls: [format!("https://10.0.0.{id}:20001")].into(),
            is_learner: id == 3,
        };
        (MemberId(id), member)
    };
    let report = |id: u64, name: &str| {
        let report = MemberReport {
            id: MemberId(id),
            cluster_id: MemberId(9),
            leader: Some(MemberId(1)),
            term: 2,
            raft_index: 100,
            applied_index: 100,
            revision: 50,
            is_learner: id == 3,
            version: "3.7.0".to_owned(),
            database: DatabaseSize::default(),
            alarms: if id == 2 { [MemberAlarm::NoSpace].into() } else { BTreeSet::new() },
            errors: Vec::new(),
        };
        (name.parse().unwrap(), ObservedValue::Known(report))
    };
    StoreObservation {
        list: Some((1..).zip(names).map(|(id, name)| listed(id, name)).collect()),
        members: (1..).zip(names).map(|(id, name)| report(id, name)).collect(),
        other_alarms: [(MemberId(8), [MemberAlarm::Corrupt].into())].into(),
    }
}

fn name(text: &str) -> ComponentName {
    text.parse().unwrap()
}

fn add(urls: &[&str]) -> StoreOrder {
    StoreOrder::AddLearner { component: name("etcd-3"), peer_urls: urls.iter().map(ToString::to_string).collect() }
}

fn promote(id: u64) -> StoreOrder {
    StoreOrder::Promote { component: name("etcd-2"), id: MemberId(id) }
}

fn remove(id: u64) -> StoreOrder {
    let reason = keelway_api::membership::MembershipReason::Replicas;
    StoreOrder::Remove { component: name("etcd-0"), id: MemberId(id), reason }
}

fn move_leader(from: u64, to: u64) -> StoreOrder {
    StoreOrder::MoveLeader { from: MemberId(from), to: MemberId(to) }
}

fn disarm(id: u64, alarm: MemberAlarm) -> StoreOrder {
    StoreOrder::Disarm { id: MemberId(id), alarm }
}

fn defragment(id: u64, size: u64) -> StoreOrder {
    StoreOrder::Defragment { component: name("etcd-0"), id: MemberId(id), size }
}

#[test]
fn an_order_that_has_taken_effect_is_not_sent_again() {
    let store = store();
    let done = |order: StoreOrder| has_taken_effect(&order, &store, store.list.as_ref().unwrap()).unwrap();
    assert!(done(add(&["https://10.0.0.2:20001"])) && !done(add(&["https://10.0.0.4:20001"])));
    assert!(done(promote(2)) && !done(promote(3)));
    assert!(done(move_leader(2, 1)) && !done(move_leader(1, 2)));
    assert!(done(remove(7)) && !done(remove(1)));
    assert!(done(disarm(1, MemberAlarm::NoSpace)) && !done(disarm(2, MemberAlarm::NoSpace)));
    assert!(done(disarm(2, MemberAlarm::Corrupt)));
    assert!(!done(disarm(8, MemberAlarm::Corrupt)), "the alarm of a removed member is raised");
    assert!(!done(StoreOrder::Compact { revision: 50 }) && !done(defragment(1, 0)));
    assert!(done(defragment(1, 1)), "the file is smaller than it was");
}

#[test]
fn a_member_that_is_not_listed_cannot_be_promoted() {
    let store = store();
    let refused = has_taken_effect(&promote(7), &store, store.list.as_ref().unwrap()).unwrap_err();
    assert_eq!(refused.to_string(), "no etcd member has the ID 7");
}

#[test]
fn no_member_removes_itself_and_only_the_leader_hands_over() {
    let mut store = store();
    let through = |order: StoreOrder, store: &StoreObservation| executor(&order, store).map(ToString::to_string);
    assert_eq!(through(add(&[]), &store).as_deref(), Some("etcd-0"), "the leader");
    assert_eq!(through(remove(1), &store).as_deref(), Some("etcd-1"));
    assert_eq!(through(move_leader(1, 2), &store).as_deref(), Some("etcd-0"));
    assert_eq!(through(defragment(2, 0), &store).as_deref(), Some("etcd-1"), "each member rewrites its own database");
    assert_eq!(through(StoreOrder::Compact { revision: 50 }, &store).as_deref(), Some("etcd-0"));
    store.members.insert(name("etcd-0"), ObservedValue::unreachable("it is off"));
    assert_eq!(through(promote(3), &store).as_deref(), Some("etcd-1"), "the learner executes nothing");
    assert_eq!(through(move_leader(1, 2), &store), None);
    store.members.insert(name("etcd-1"), ObservedValue::unreachable("it is off"));
    assert_eq!(through(promote(3), &store), None);
}
