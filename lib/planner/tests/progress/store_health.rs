//! The condition `EtcdMembersHealthy` of a cluster, and which stores are observed.

use keelway_api::machine::ObservedValue;
use keelway_planner::{
    DatabaseSize, ListedMember, MemberAlarm, MemberId, MemberReport, StoreObservation, has_store, lag, needs_store,
};

use super::World;

/// A store of three members that all work. Its first member leads.
fn healthy(world: &mut World) -> StoreObservation {
    let recorded = world.cluster().status.as_ref().unwrap().etcd.as_ref().unwrap();
    let ids: Vec<_> =
        recorded.members.iter().map(|(name, member)| (name.clone(), member.id.parse().unwrap())).collect();
    let leader: MemberId = ids[0].1;
    let listed = |(name, id): &(keelway_api::name::ComponentName, MemberId)| {
        (
            *id,
            ListedMember { name: name.to_string(), peer_urls: [format!("https://{name}:1")].into(), is_learner: false },
        )
    };
    let report = |id: MemberId| MemberReport {
        id,
        cluster_id: MemberId(1),
        leader: Some(leader),
        term: 2,
        raft_index: 10_000,
        applied_index: 10_000,
        revision: 7_000,
        is_learner: false,
        version: "3.7.0".to_owned(),
        database: DatabaseSize::default(),
        alarms: [].into(),
        errors: vec![],
    };
    StoreObservation {
        list: Some(ids.iter().map(listed).collect()),
        members: ids.iter().map(|(name, id)| (name.clone(), ObservedValue::Known(report(*id)))).collect(),
        other_alarms: [].into(),
    }
}

fn change(store: &mut StoreObservation, member: &str, change: impl FnOnce(&mut MemberReport)) {
    let ObservedValue::Known(report) = store.members.get_mut(&member.parse().unwrap()).unwrap() else { return };
    change(report);
}

/// Returns the reason and the message of the condition after a pass that observed this store.
fn reported(world: &mut World, store: &StoreObservation) -> Option<(String, String)> {
    world.store = Some(store.clone());
    world.pass();
    let before = world.documents.clone();
    world.pass();
    assert_eq!(world.documents, before, "nothing is written while the store stays as it is");
    world.condition("EtcdMembersHealthy").map(|found| (found.reason.clone(), found.message.clone()))
}

#[test]
fn a_member_that_lags_is_reported_until_it_has_caught_up_and_no_index_is_written() {
    let mut world = World::settled();
    let mut store = healthy(&mut world);
    assert_eq!(reported(&mut world, &store), None);
    change(&mut store, "etcd-2", |report| report.applied_index = 5_000);
    assert_eq!(reported(&mut world, &store), None);
    change(&mut store, "etcd-2", |report| report.applied_index = 4_999);
    let (reason, message) = reported(&mut world, &store).unwrap();
    assert_eq!(reason, "MemberLagging");
    let text = "waits for etcd-2 to receive the log: it is more than 5000 entries behind the leader";
    assert_eq!(message, text);
    assert_eq!(world.progressing().1, "Changing");
    let before = world.documents.clone();
    change(&mut store, "etcd-2", |report| report.applied_index = 300);
    world.store = Some(store.clone());
    world.pass();
    assert_eq!(world.documents, before, "another index is no other fault");
    assert_eq!(lag(&store, &"etcd-2".parse().unwrap()), Some(9_700));
    change(&mut store, "etcd-2", |report| report.applied_index = 9_999);
    assert_eq!(reported(&mut world, &store), None);
    assert_eq!(world.progressing().1, "Settled");
}

#[test]
fn a_learner_that_catches_up_does_not_lag() {
    let mut world = World::settled();
    let mut store = healthy(&mut world);
    change(&mut store, "etcd-2", |report| (report.applied_index, report.is_learner) = (1, true));
    assert_eq!(reported(&mut world, &store), None);
}

#[test]
fn a_member_that_another_client_removed_is_reported_until_a_healthy_member_confirms_it() {
    let mut world = World::settled();
    let mut store = healthy(&mut world);
    let list = store.list.as_mut().unwrap();
    let removed = *list.iter().find(|(_, member)| member.name == "etcd-1").unwrap().0;
    list.remove(&removed);
    // These members report the id of another store than the documents record.
    assert_eq!(reported(&mut world, &store).unwrap().0, "MemberMissing");
}

#[test]
fn a_member_that_another_client_added_is_reported() {
    let mut world = World::settled();
    let mut store = healthy(&mut world);
    let list = store.list.as_mut().unwrap();
    let mut member = list.values().next().unwrap().clone();
    member.name = "etcd-9".to_owned();
    member.peer_urls = ["https://etcd-9:1".to_owned()].into();
    list.insert(MemberId(7), member.clone());
    let (reason, message) = reported(&mut world, &store).unwrap();
    assert_eq!(reason, "MemberUnknown");
    assert!(message.starts_with("waits for etcd-9 to leave etcd's member list"), "{message}");
    assert_eq!(world.progressing().1, "Blocked", "a person has to remove it");
    // A member that was added has no name until it starts.
    member.name = String::new();
    store.list.as_mut().unwrap().insert(MemberId(7), member);
    assert_eq!(reported(&mut world, &store), None);
}

#[test]
fn a_corrupt_member_is_reported_before_all_else() {
    let mut world = World::settled();
    let mut store = healthy(&mut world);
    change(&mut store, "etcd-0", |report| report.applied_index = 1);
    change(&mut store, "etcd-1", |report| report.alarms = [MemberAlarm::Corrupt].into());
    let (reason, message) = reported(&mut world, &store).unwrap();
    assert_eq!((reason.as_str(), message.contains("etcd-1")), ("MemberCorrupt", true));
}

#[test]
fn a_lost_majority_is_reported_and_a_partition_of_the_driver_is_not() {
    let mut world = World::settled();
    let mut store = healthy(&mut world);
    store.list = None;
    for member in ["etcd-0", "etcd-1", "etcd-2"] {
        store.members.insert(member.parse().unwrap(), ObservedValue::unreachable("no response"));
    }
    assert_eq!(reported(&mut world, &store), None, "the members may all work");
    let mut one = healthy(&mut world);
    change(&mut one, "etcd-2", |report| report.leader = None);
    let survivor = one.members.remove(&"etcd-2".parse().unwrap()).unwrap();
    store.members.insert("etcd-2".parse().unwrap(), survivor);
    let (reason, message) = reported(&mut world, &store).unwrap();
    assert_eq!(reason, "NoMajority");
    let text = "waits for a majority of its etcd members: etcd-0, etcd-1, etcd-2 do not respond or report no leader";
    assert_eq!(message, text);
}

#[test]
fn the_alarm_of_a_machine_without_an_agent_is_read_from_the_store() {
    let mut world = World::settled();
    world.databases([90, 90, 90]);
    assert_eq!(world.room().unwrap().0, "NearQuota");
    let mut store = healthy(&mut world);
    change(&mut store, "etcd-1", |report| report.alarms = [MemberAlarm::NoSpace].into());
    world.store = Some(store);
    let (reason, message) = world.room().unwrap();
    assert_eq!((reason.as_str(), message.starts_with("etcd-1: the alarm NOSPACE")), ("NoSpace", true));
}

#[test]
fn a_settled_store_is_not_observed_and_one_with_a_fault_is() {
    let mut world = World::settled();
    let needs = |world: &World| needs_store(&world.documents, world.documents.clusters.values().next().unwrap());
    assert!(!needs(&world));
    assert!(has_store(world.cluster()));
    let mut store = healthy(&mut world);
    change(&mut store, "etcd-2", |report| report.applied_index = 1);
    reported(&mut world, &store).unwrap();
    assert!(needs(&world), "its condition has to be removed again");
    let mut world = World::settled();
    world.cluster().spec.etcd.replicas = 5;
    assert!(needs(&world));
    let mut world = World::settled();
    let machine = world.machine_of("etcd-0");
    world.silent.insert(machine);
    world.pass();
    assert!(needs(&world), "a member is not ready");
    let mut world = World::settled();
    let machine = world.machine_of("etcd-0");
    world.documents.hypervisors.get_mut(&machine).unwrap().spec.drain = true;
    assert!(needs(&world));
}
