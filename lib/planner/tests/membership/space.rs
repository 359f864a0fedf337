//! Databases that fill up: what is ordered, in which order, and when nothing is.

use keelway_api::membership::MembershipReason;
use keelway_planner::{StoreOrder, WaitBlocker, invariants};

use super::steps::{kinds, settle};
use crate::world::{DriverFate, Round, World, calm};

/// Lets clients write new data and replaced data, in percent of the quota.
fn write(world: &mut World, new: u64, replaced: u64) {
    world.store.as_mut().unwrap().write(new, replaced);
}

/// The followers in their order, and the leader.
fn members(world: &World) -> ([String; 2], String) {
    let leader = world.leader().0;
    let mut followers = world.members().into_keys().filter(|name| *name != leader).map(|name| name.to_string());
    ([followers.next().unwrap(), followers.next().unwrap()], leader.to_string())
}

#[test]
fn a_full_store_is_compacted_and_defragmented_with_its_leader_last_and_then_accepts_writes() {
    let mut world = World::settled(3);
    write(&mut world, 2, 98);
    let ([first, second], leader) = members(&world);
    settle(&mut world, &calm(3));
    let rewritten = [first, second].map(|name| format!("defragment {name}"));
    let rest = ["move the leader".to_owned(), format!("defragment {leader}")];
    let disarmed = ["disarm NOSPACE"; 3].map(ToOwned::to_owned);
    assert_eq!(kinds(&world), [vec!["compact".to_owned()], rewritten.into(), rest.into(), disarmed.into()].concat());
    let last = world.status().space.unwrap().last_defragmentation.unwrap();
    assert_eq!(last.component.to_string(), leader);
}

#[test]
fn a_fragmented_store_is_defragmented_before_it_is_full() {
    let mut world = World::settled(3);
    write(&mut world, 2, 81);
    world.store.as_mut().unwrap().compact_as_clients_do();
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world).len(), 4, "each member once, and the leader moves once");
    assert!(kinds(&world).iter().all(|kind| kind.starts_with("defragment") || kind == "move the leader"));
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world).len(), 4, "a settled store is not defragmented again");
}

#[test]
fn a_store_whose_file_is_in_use_is_left_alone() {
    let mut world = World::settled(3);
    write(&mut world, 85, 0);
    settle(&mut world, &calm(3));
    let mut small = World::settled(3);
    write(&mut small, 2, 70);
    small.store.as_mut().unwrap().compact_as_clients_do();
    settle(&mut small, &calm(3));
    assert!(kinds(&world).is_empty() && kinds(&small).is_empty());
}

#[test]
fn the_only_member_is_defragmented_when_its_file_is_almost_full() {
    let mut world = World::settled(1);
    write(&mut world, 2, 83);
    world.store.as_mut().unwrap().compact_as_clients_do();
    settle(&mut world, &calm(1));
    assert!(kinds(&world).is_empty(), "the API would stop meanwhile");
    write(&mut world, 0, 92);
    world.store.as_mut().unwrap().compact_as_clients_do();
    settle(&mut world, &calm(1));
    assert_eq!(kinds(&world), ["defragment etcd-0"]);
    write(&mut world, 1, 99);
    settle(&mut world, &calm(1));
    assert_eq!(kinds(&world)[1..], ["compact", "defragment etcd-0", "disarm NOSPACE"]);
}

#[test]
fn a_store_that_data_fills_waits_for_a_person_and_is_compacted_again_after_deletions() {
    let mut world = World::settled(3);
    write(&mut world, 100, 0);
    for _ in 0..10 {
        let _ = world.pass(&calm(3));
    }
    assert_eq!(kinds(&world), ["compact"], "no loop");
    // The compaction is ordered again, in case that it was lost. It is reported all the time that a person has to act.
    for minutes in [0, 2, 0] {
        let plan = world.pass(&Round { minutes, ..calm(3) });
        assert!(plan.waiting.iter().any(|waiting| waiting.blocker == WaitBlocker::FilledQuota));
        let mut conditions =
            plan.documents.clusters.values().flat_map(|cluster| &cluster.status.as_ref().unwrap().conditions);
        let room = conditions.find(|condition| condition.type_ == "EtcdHasRoom").unwrap();
        assert!(room.message.contains("the data in use fills the quota of 4Gi"), "{}", room.message);
        assert_eq!(plan.stores.is_empty(), minutes == 0);
    }
    world.store.as_mut().unwrap().delete(50);
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world)[1], "compact");
    assert_eq!(kinds(&world).iter().filter(|kind| kind.starts_with("defragment")).count(), 3);
    assert_eq!(world.store.as_ref().unwrap().alarms().next(), None);
}

#[test]
fn no_member_is_defragmented_without_a_majority_beside_it() {
    let mut world = World::settled(3);
    let (name, machine) = world.members().into_iter().find(|(name, _)| *name != world.leader().0).unwrap();
    write(&mut world, 2, 98);
    let dead = Round { dead: 1 << world.number_of(&machine), minutes: 0, ..calm(3) };
    for _ in 0..10 {
        let plan = world.pass(&dead);
        assert!(!plan.stores.values().any(|order| matches!(order, StoreOrder::Defragment { .. })), "{name}");
    }
    assert_eq!(kinds(&world), ["compact"]);
    settle(&mut world, &calm(3));
    assert_eq!(world.store.as_ref().unwrap().alarms().next(), None);
}

/// While the first member may still be rewritten, no driver begins with another one, even if the leader has changed.
#[test]
fn a_member_whose_defragmentation_was_ordered_comes_first() {
    let mut world = World::settled(3);
    write(&mut world, 2, 98);
    let _ = world.pass(&calm(3));
    let lost = Round { fate: DriverFate::LosesTheOrder, ..calm(3) };
    let ordered = |world: &mut World| match world.pass(&lost).stores.into_values().next() {
        Some(StoreOrder::Defragment { component, .. }) => component,
        other => panic!("{other:?}"),
    };
    let first = ordered(&mut world);
    let leader = world.store.as_ref().unwrap().leader().unwrap();
    let others = world.status().members.into_iter().filter(|(name, _)| *name != first);
    let mut others = others.map(|(_, member)| member.id.parse().unwrap());
    let to = others.find(|id| *id != leader).unwrap();
    let up = world.store.as_ref().unwrap().list().keys().copied().collect();
    world.store.as_mut().unwrap().execute(&StoreOrder::MoveLeader { from: leader, to }, &up).unwrap();
    assert_eq!(ordered(&mut world), first);
    settle(&mut world, &calm(3));
}

#[test]
fn a_compaction_that_was_lost_is_ordered_again() {
    let mut world = World::settled(3);
    write(&mut world, 2, 98);
    let _ = world.pass(&Round { fate: DriverFate::LosesTheOrder, ..calm(3) });
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world)[0], "compact");
    assert_eq!(world.store.as_ref().unwrap().alarms().next(), None);
}

#[test]
fn a_full_store_is_freed_before_its_members_change() {
    let mut world = World::settled(3);
    write(&mut world, 2, 98);
    settle(&mut world, &calm(5));
    let orders = kinds(&world);
    let disarmed = orders.iter().rposition(|kind| kind == "disarm NOSPACE").unwrap();
    let added = orders.iter().position(|kind| kind.starts_with("add")).unwrap();
    assert!(disarmed < added, "{orders:?}");
}

/// Plans with a planted fault: the checker reports each of them.
#[test]
fn wrong_orders_about_space_are_found() {
    let mut world = World::settled(3);
    write(&mut world, 2, 98);
    let (plan, seen, _) = world.decide(&calm(3));
    assert_eq!(invariants::check_stores(&plan, &seen), []);
    let finds = |order: StoreOrder| {
        let mut plan = plan.clone();
        *plan.stores.values_mut().next().unwrap() = order;
        !invariants::check_stores(&plan, &seen).is_empty()
    };
    let leader = world.store.as_ref().unwrap().leader().unwrap();
    let component = world.leader().0;
    let alarm = keelway_api::store_observation::MemberAlarm::NoSpace;
    assert!(finds(StoreOrder::Defragment { component: component.clone(), id: leader, size: 1 }), "the leader");
    assert!(finds(StoreOrder::Disarm { id: leader, alarm }), "it has no room");
    assert!(finds(StoreOrder::Compact { revision: 7 }), "it is not recorded");
    assert!(finds(StoreOrder::Remove { component, id: leader, reason: MembershipReason::DataCorrupt }));
}
