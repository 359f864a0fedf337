//! The steps of single changes, in order.

use std::collections::BTreeMap;

use keelway_api::name::PodName;
use keelway_planner::{StoreOrder, WaitBlocker};

use crate::world::{Round, World, calm};

pub(super) fn kinds(world: &World) -> Vec<String> {
    let kind = |order: &StoreOrder| match order {
        StoreOrder::AddLearner { component, .. } => format!("add {component}"),
        StoreOrder::Promote { component, .. } => format!("promote {component}"),
        StoreOrder::MoveLeader { .. } => "move the leader".to_owned(),
        StoreOrder::Remove { component, .. } => format!("remove {component}"),
        StoreOrder::Disarm { alarm, .. } => format!("disarm {alarm}"),
        StoreOrder::Compact { .. } => "compact".to_owned(),
        StoreOrder::Defragment { component, .. } => format!("defragment {component}"),
        StoreOrder::Restore { .. } => format!("{order}"),
    };
    world.orders.iter().map(kind).collect()
}

pub(super) fn settle(world: &mut World, round: &Round) {
    for _ in 0..40 {
        let plan = world.pass(round);
        if plan.decisions.is_empty() && plan.waiting.is_empty() {
            return;
        }
    }
    panic!("it does not settle: {:#?}", world.pass(round).waiting);
}

#[test]
fn a_drained_machine_leaves_after_its_replacement_votes() {
    let mut world = World::settled(3);
    let before = world.digests();
    let (component, machine) = world.leader();
    let drained = Round { drained: 1 << world.number_of(&machine), ..calm(3) };
    settle(&mut world, &drained);
    assert_eq!(kinds(&world), ["add etcd-3", "promote etcd-3", "move the leader", &format!("remove {component}")]);
    assert!(!world.members().contains_key(&component));
    assert!(world.members().values().all(|other| *other != machine));
    let after = world.digests();
    let restarted = after.iter().filter(|(pod, digest)| before.get(*pod).is_some_and(|before| before != *digest));
    let restarted: Vec<&str> = restarted.map(|(pod, _)| pod.component.as_str()).collect();
    assert!(restarted.iter().all(|name| name.starts_with("kube-apiserver-")), "no member restarts: {restarted:?}");
}

#[test]
fn a_member_goes_after_api_servers_stopped_using_it() {
    let mut world = World::settled(3);
    let leader = world.leader().0;
    let (component, machine) = world.members().into_iter().find(|(name, _)| *name != leader).unwrap();
    let drained = Round { drained: 1 << world.number_of(&machine), ..calm(3) };
    let mut waits = Vec::new();
    for _ in 0..20 {
        let plan = world.pass(&drained);
        let removes = plan.stores.values().any(|order| matches!(order, StoreOrder::Remove { .. }));
        let waited = plan.waiting.iter().any(|waiting| matches!(waiting.blocker, WaitBlocker::ServerOfMember(_)));
        waits.push((waited, removes));
        assert!(!(waited && removes));
    }
    let waited = waits.iter().position(|(waited, _)| *waited).unwrap();
    let removed = waits.iter().position(|(_, removes)| *removes).unwrap();
    assert!(waited < removed, "{waits:?}");
    assert!(!world.members().contains_key(&component));
}

#[test]
fn a_lost_member_is_removed_before_another_is_added() {
    let mut world = World::settled(3);
    let (component, machine) = world.members().into_iter().next().unwrap();
    world.lose(world.number_of(&machine));
    settle(&mut world, &calm(3));
    assert_eq!(kinds(&world), [&format!("remove {component}"), "add etcd-3", "promote etcd-3"]);
    let removed = &world.status().members[&component];
    assert_eq!(removed.removed_from.as_ref(), Some(&machine), "its data is removed when the machine returns");
}

#[test]
fn api_servers_are_replaced_once_and_after_the_new_member_votes() {
    let mut world = World::settled(3);
    let machine = world.members().into_values().next().unwrap();
    world.lose(world.number_of(&machine));
    // The arguments with which each API server ran, and the orders to the store before each of them.
    let mut seen: BTreeMap<PodName, Vec<(String, usize)>> = BTreeMap::new();
    for _ in 0..40 {
        let _ = world.pass(&calm(3));
        for (pod, digest) in world.digests() {
            let runs = seen.entry(pod).or_default();
            if runs.last().is_none_or(|(last, _)| *last != digest) {
                runs.push((digest, world.orders.len()));
            }
        }
    }
    let servers = seen.iter().filter(|(pod, _)| pod.component.as_str().starts_with("kube-apiserver-"));
    let replaced: Vec<_> = servers.filter(|(_, runs)| runs.len() > 1).collect();
    assert!(!replaced.is_empty(), "{seen:?}");
    for (pod, runs) in replaced {
        assert_eq!(runs.len(), 2, "{pod} was replaced more than once");
        assert_eq!(runs[1].1, world.orders.len(), "{pod} was replaced before {:?}", kinds(&world));
    }
}

#[test]
fn api_servers_wait_for_a_learner_that_does_not_catch_up_for_five_minutes() {
    let mut world = World::settled(1);
    let slow = Round { minutes: 1, lags: true, ..calm(3) };
    let mut waits = Vec::new();
    for _ in 0..12 {
        let plan = world.pass(&slow);
        waits.push(plan.waiting.iter().any(|waiting| matches!(waiting.blocker, WaitBlocker::ReplacedAfterMember(_))));
    }
    let change = world.status().change.unwrap();
    assert_eq!((change.component.as_str(), change.api_servers_wait_since), ("etcd-1", None), "{waits:?}");
}

#[test]
fn an_unreachable_member_is_replaced_after_ten_minutes_and_not_before() {
    let mut world = World::settled(3);
    let (component, machine) = world.members().into_iter().next().unwrap();
    let dead = Round { dead: 1 << world.number_of(&machine), ..calm(3) };
    for _ in 0..8 {
        let plan = world.pass(&dead);
        assert!(plan.stores.is_empty() && plan.decisions.is_empty(), "{:?}", plan.decisions);
    }
    for _ in 0..20 {
        let _ = world.pass(&dead);
    }
    assert!(!world.status().staying_members().any(|(name, _)| *name == component));
    assert_eq!(kinds(&world), [&format!("remove {component}"), "add etcd-3", "promote etcd-3"]);
    // Its machine returns: it stops the old member and removes its data.
    settle(&mut world, &calm(3));
    assert!(!world.status().members.contains_key(&component));
}

#[test]
fn nothing_is_ordered_without_a_majority() {
    let mut world = World::settled(3);
    let machines: Vec<_> = world.members().into_values().collect();
    machines.iter().take(2).for_each(|machine| world.lose(world.number_of(machine)));
    // The first pass records that the machines do not respond.
    let _ = world.pass(&calm(3));
    for _ in 0..20 {
        let plan = world.pass(&calm(3));
        assert!(plan.stores.is_empty());
        assert!(plan.waiting.iter().any(|waiting| matches!(waiting.blocker, WaitBlocker::LostQuorum { .. })));
    }
    assert_eq!(world.status().staying_members().count(), 3);
}

#[test]
fn a_store_grows_and_shrinks_by_one_member_at_a_time() {
    let mut world = World::settled(1);
    for replicas in [3, 5, 3, 1, 3] {
        world.settle(replicas);
    }
    let names: Vec<String> = world.members().keys().map(ToString::to_string).collect();
    assert_eq!(names.len(), 3);
    assert!(names.contains(&"etcd-6".to_owned()), "no name is used twice: {names:?}");
}

/// A learner that never catches up is not promoted, and is removed if it is not needed any more.
#[test]
fn a_learner_that_lags_is_not_promoted() {
    let mut world = World::settled(1);
    let lags = Round { lags: true, ..calm(3) };
    for _ in 0..12 {
        let _ = world.pass(&lags);
    }
    let plan = world.pass(&lags);
    let behind = |blocker: &WaitBlocker| matches!(blocker, WaitBlocker::LearnerBehind { .. });
    assert!(plan.waiting.iter().any(|waiting| behind(&waiting.blocker)), "{:?}", plan.waiting);
    settle(&mut world, &calm(1));
    assert_eq!(kinds(&world), ["add etcd-1", "remove etcd-1"]);
}
