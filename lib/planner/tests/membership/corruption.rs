//! Members that etcd reports as corrupt, and members that another client removed or added.

use keelway_api::{membership::MembershipReason, store_observation::MemberId};
use keelway_planner::{StoreOrder, WaitBlocker};

use super::steps::{kinds, settle};
use crate::world::{World, calm};

fn id_of(world: &World, member: &str) -> MemberId {
    world.status().members[&member.parse().unwrap()].id.parse().unwrap()
}

fn follower(world: &World) -> String {
    let leader = world.leader().0;
    world.members().into_keys().find(|name| *name != leader).unwrap().to_string()
}

fn corrupt(world: &mut World, id: MemberId) {
    world.store.as_mut().unwrap().corrupt(id);
}

#[test]
fn a_corrupt_member_is_removed_its_alarm_is_disarmed_and_another_one_is_added() {
    let mut world = World::settled(3);
    let name = follower(&world);
    let id = id_of(&world, &name);
    corrupt(&mut world, id);
    settle(&mut world, &calm(3));
    let steps = [format!("remove {name}"), "disarm CORRUPT".to_owned(), "add etcd-3".into(), "promote etcd-3".into()];
    assert_eq!(kinds(&world), steps);
    assert!(!world.members().contains_key(&name.parse().unwrap()));
}

#[test]
fn a_corrupt_leader_stops_leading_first() {
    let mut world = World::settled(3);
    let name = world.leader().0;
    let id = id_of(&world, name.as_str());
    corrupt(&mut world, id);
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world)[..3], ["move the leader".to_owned(), format!("remove {name}"), "disarm CORRUPT".into()]);
}

#[test]
fn a_learner_that_may_be_a_copy_of_corrupt_data_is_removed() {
    let mut world = World::settled(3);
    for _ in 0..10 {
        if world.orders.iter().any(|order| matches!(order, StoreOrder::AddLearner { .. })) {
            break;
        }
        let _ = world.pass(&calm(5));
    }
    let id = id_of(&world, world.leader().0.as_str());
    corrupt(&mut world, id);
    settle(&mut world, &calm(5));
    let removed = |order: &&StoreOrder| {
        matches!(order, StoreOrder::Remove { component, reason: MembershipReason::DataCorrupt, .. }
            if component.as_str() == "etcd-3")
    };
    assert_eq!(world.orders.iter().filter(removed).count(), 1, "{:?}", kinds(&world));
    assert_eq!(world.members().len(), 5);
}

#[test]
fn nothing_changes_while_it_is_not_certain_which_member_is_corrupt() {
    let members = |world: &World, number: usize| {
        let ids: Vec<MemberId> = world.store.as_ref().unwrap().list().keys().copied().take(number).collect();
        ids
    };
    for (replicas, corrupted) in [(3, 0), (3, 2), (1, 1)] {
        let mut world = World::settled(replicas);
        let ids = if corrupted == 0 { vec![MemberId(0)] } else { members(&world, corrupted) };
        for id in ids {
            corrupt(&mut world, id);
        }
        for _ in 0..5 {
            // Nor does anything else.
            let plan = world.pass(&calm(5));
            assert!(plan.stores.is_empty() && plan.decisions.is_empty(), "{:?}", plan.decisions);
            let says = |blocker: &WaitBlocker| {
                matches!(blocker, WaitBlocker::UnclearCorruption(_) | WaitBlocker::StoreFault(_))
            };
            assert_eq!(plan.waiting.iter().filter(|waiting| says(&waiting.blocker)).count(), 1, "{:?}", plan.waiting);
        }
    }
}

#[test]
fn a_member_that_another_client_removed_is_replaced() {
    let mut world = World::settled(3);
    let name = follower(&world);
    let id = id_of(&world, &name);
    let removal = StoreOrder::Remove { component: name.parse().unwrap(), id, reason: MembershipReason::Replicas };
    let up = world.store.as_ref().unwrap().list().keys().copied().collect();
    world.store.as_mut().unwrap().execute(&removal, &up).unwrap();
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world), ["add etcd-3", "promote etcd-3"]);
    assert!(!world.status().members.contains_key(&name.parse().unwrap()), "its data is removed");
    assert_eq!(world.members().len(), 3);
}

#[test]
fn a_member_that_another_client_added_is_reported_once() {
    let mut world = World::settled(3);
    let added = StoreOrder::AddLearner {
        component: "etcd-9".parse().unwrap(),
        peer_urls: vec!["https://10.9.9.9:2380".to_owned()],
    };
    let up = world.store.as_ref().unwrap().list().keys().copied().collect();
    world.store.as_mut().unwrap().execute(&added, &up).unwrap();
    for replicas in [3, 5] {
        let plan = world.pass(&calm(replicas));
        let says =
            |blocker: &WaitBlocker| matches!(blocker, WaitBlocker::UnknownMember { .. } | WaitBlocker::StoreFault(_));
        assert_eq!(plan.waiting.iter().filter(|waiting| says(&waiting.blocker)).count(), 1, "{:?}", plan.waiting);
        assert!(plan.stores.is_empty());
    }
}
