//! Stores that lose their quorum for good, and are rebuilt from the member that remains. The driver may die between any two steps.

mod gates;
mod planted;
mod restored;

use keelway_api::{
    Time,
    cluster::{EtcdSpec, RemovalReason},
    name::ComponentName,
    store_rebuild::{EtcdRecovery, QuorumRecovery, RebuildPhase},
};
use keelway_planner::{Decision, Plan, WaitBlocker};
use proptest::{collection::vec, prelude::*};

use crate::world::{DriverFate, Round, World, calm};

fn change_spec(world: &mut World, change: impl FnOnce(&mut EtcdSpec)) {
    change(&mut world.documents.clusters.values_mut().next().unwrap().spec.etcd);
}

/// A person requests the recovery now.
fn request(world: &mut World, lost: &[ComponentName]) {
    let request = QuorumRecovery { requested_at: Time(world.now), lost: lost.to_vec() };
    change_spec(world, |spec| spec.recover_quorum = Some(request));
}

/// Machines that do not work from now on, and the members on them, without a word of a person.
fn kill(world: &mut World, count: usize) -> Vec<ComponentName> {
    let members: Vec<_> = world.members().into_iter().collect();
    let killed: Vec<_> = members.into_iter().rev().take(count).collect();
    for (_, machine) in &killed {
        let number = world.number_of(machine);
        world.lost.insert(number);
    }
    killed.into_iter().map(|(name, _)| name).collect()
}

/// The members that remain notice within the first pass that they have no leader.
fn pass_twice(world: &mut World, replicas: u32) {
    let _ = world.pass(&calm(replicas));
    let _ = world.pass(&calm(replicas));
}

fn annotate(world: &mut World) {
    world.lost.clone().into_iter().for_each(|number| world.lose(number));
}

fn phase(world: &World) -> Option<RebuildPhase> {
    world.status().rebuild.map(|rebuild| rebuild.phase)
}

fn lost_quorum(plan: &Plan) -> Option<String> {
    let blockers = plan.waiting.iter().map(|waiting| &waiting.blocker);
    blockers.filter(|blocker| matches!(blocker, WaitBlocker::LostQuorum { .. })).map(ToString::to_string).next()
}

/// A settled store of which so many members are gone, and whose loss is recorded.
fn without_quorum(replicas: u32, count: usize) -> (World, Vec<ComponentName>) {
    let mut world = World::settled(replicas);
    let killed = kill(&mut world, count);
    pass_twice(&mut world, replicas);
    assert!(world.status().quorum_lost_since.is_some());
    (world, killed)
}

#[test]
fn a_lost_quorum_is_reported_with_the_command_that_ends_it() {
    let (mut world, _) = without_quorum(3, 2);
    for _ in 0..30 {
        let plan = world.pass(&calm(3));
        let text = lost_quorum(&plan).unwrap();
        assert!(
            text.starts_with("a majority of its etcd members: 1 of 3 responds (etcd-0; not etcd-1, etcd-2)"),
            "{text}"
        );
        assert!(text.contains("`keelway cluster recover-quorum --name c1 --lost etcd-1,etcd-2`"), "{text}");
        assert!(plan.stores.is_empty() && world.status().rebuild.is_none());
    }
}

#[test]
fn a_request_rebuilds_the_store_step_by_step_and_adds_members_again() {
    let (mut world, killed) = without_quorum(3, 2);
    request(&mut world, &killed);
    let mut phases = Vec::new();
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
        phases.extend(phase(&world));
    }
    phases.dedup();
    let expected = [
        RebuildPhase::Stopping,
        RebuildPhase::Preparing,
        RebuildPhase::Starting,
        RebuildPhase::Restarting,
        RebuildPhase::Serving,
    ];
    assert_eq!(phases, expected);
    let status = world.status();
    let rebuilt = status.rebuilt.clone().unwrap();
    assert_eq!((rebuilt.number, rebuilt.member.as_str(), status.quorum_lost_since), (1, "etcd-0", None));
    for name in &killed {
        let member = &status.members[name];
        assert_eq!(member.removal, Some(RemovalReason::StoreRebuilt), "the order waits for its machine");
    }
    annotate(&mut world);
    world.settle(3);
    assert_eq!(world.forced.len(), 1, "one start with --force-new-cluster");
}

/// A learner does not vote, so it makes no majority with the voters that remain.
#[test]
fn a_voter_is_lost_while_a_learner_joins() {
    let mut world = World::settled(3);
    let first = kill(&mut world, 1);
    annotate(&mut world);
    let joins = |world: &World| {
        let status = world.status();
        let change = status.change.as_ref();
        change.is_some_and(|change| change.adds(&change.component) && status.members.contains_key(&change.component))
    };
    for _ in 0..20 {
        if !joins(&world) {
            let _ = world.pass(&Round { lags: true, ..calm(3) });
        }
    }
    assert!(joins(&world), "{:?}", world.status());
    let lost: ComponentName = "etcd-1".parse().unwrap();
    assert!(!first.contains(&lost));
    let number = world.number_of(&world.members()[&lost]);
    world.lost.insert(number);
    pass_twice(&mut world, 3);
    request(&mut world, &[lost]);
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
    }
    assert_eq!(world.status().rebuilt.map(|rebuilt| rebuilt.member.to_string()), Some("etcd-0".to_owned()));
}

/// Gate 13.
#[test]
fn a_survivor_whose_machine_is_lost_ends_the_rebuild_and_another_member_may_go_on() {
    let (mut world, killed) = without_quorum(5, 3);
    request(&mut world, &killed);
    let _ = world.pass(&calm(5));
    let survivor = world.status().rebuild.unwrap().member;
    let number = world.number_of(&world.members()[&survivor]);
    world.lost.insert(number);
    annotate(&mut world);
    pass_twice(&mut world, 5);
    pass_twice(&mut world, 5);
    assert_eq!(phase(&world), None);
    assert!(lost_quorum(&world.pass(&calm(5))).is_some(), "the loss needs another request");
    request(&mut world, &[]);
    world.settle(5);
    let rebuilt = world.status().rebuilt.unwrap();
    assert!(rebuilt.member != survivor && !killed.contains(&rebuilt.member), "{rebuilt:?}");
}

#[test]
fn a_store_without_any_data_is_reported_with_the_ways_out() {
    let mut world = World::settled(3);
    kill(&mut world, 3);
    annotate(&mut world);
    pass_twice(&mut world, 3);
    let plan = world.pass(&calm(3));
    let text = plan.waiting.iter().find(|waiting| matches!(waiting.blocker, WaitBlocker::StoreDataLost { .. }));
    let text = text.unwrap_or_else(|| panic!("{:?}", plan.waiting)).to_string();
    assert!(text.contains("`keelway cluster restore --name c1 --snapshot NAME`"), "{text}");
}

#[test]
fn the_member_with_the_highest_index_goes_on() {
    let mut world = World::settled(5);
    let members = world.members();
    let number = |world: &World, name: &str| world.number_of(&members[&name.parse::<ComponentName>().unwrap()]);
    // etcd-0 misses some entries.
    let behind = Round { dead: 1 << number(&world, "etcd-0"), ..calm(5) };
    for _ in 0..3 {
        let _ = world.pass(&behind);
    }
    let killed = kill(&mut world, 3);
    pass_twice(&mut world, 5);
    request(&mut world, &killed);
    let plan = world.pass(&calm(5));
    let decided = plan.decisions.iter().any(|decision| {
        matches!(decision, Decision::RebuildStore { component, .. } if component.component.as_str() == "etcd-1")
    });
    assert!(decided, "{:?}", plan.decisions);
}

#[test]
fn a_machine_that_returns_never_starts_its_old_member() {
    let (mut world, killed) = without_quorum(3, 2);
    request(&mut world, &killed);
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
    }
    let store = world.store.clone().unwrap();
    world.lost.clear();
    world.returned = true;
    world.settle(3);
    world.returned = false;
    assert!(
        killed.iter().all(|name| !world.status().members.contains_key(name)),
        "its machine was observed without it"
    );
    assert!(world.store.unwrap().list().len() == 3 && store.list().len() < 4);
}

#[test]
fn a_majority_that_returns_before_the_forced_start_goes_on_as_it_was() {
    let (mut world, killed) = without_quorum(3, 2);
    request(&mut world, &killed);
    while phase(&world) != Some(RebuildPhase::Preparing) {
        let _ = world.pass(&calm(3));
    }
    world.lost.clear();
    world.returned = true;
    world.settle(3);
    assert_eq!((world.status().rebuilt, world.forced.len()), (None, 0));
    assert!(killed.iter().all(|name| world.members().contains_key(name)));
}

#[test]
fn a_second_loss_is_another_rebuild_with_another_copy() {
    let (mut world, killed) = without_quorum(3, 2);
    request(&mut world, &killed);
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
    }
    world.lost.clear();
    world.returned = true;
    world.settle(3);
    world.returned = false;
    let killed = kill(&mut world, 2);
    pass_twice(&mut world, 3);
    for _ in 0..5 {
        let plan = world.pass(&calm(3));
        assert!(lost_quorum(&plan).is_some(), "the old request counts no more");
    }
    request(&mut world, &killed);
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
    }
    let waiting = world.pass(&calm(3)).waiting;
    assert_eq!(world.status().rebuilt.as_ref().unwrap().number, 2, "{:?} {waiting:?}", world.status().rebuild);
    assert_eq!(world.forced.len(), 2);
}

/// The copy of a rebuild that was given up is older than what the survivor has stored since.
#[test]
fn a_rebuild_that_was_given_up_leaves_a_copy_that_no_other_one_uses() {
    let (mut world, killed) = without_quorum(3, 2);
    request(&mut world, &killed);
    while !world.has_copy("etcd-0", 1) {
        let _ = world.pass(&calm(3));
    }
    world.lost.clear();
    world.returned = true;
    world.settle(3);
    world.returned = false;
    assert!(world.has_copy("etcd-0", 1) && world.forced.is_empty());

    let killed = kill(&mut world, 2);
    pass_twice(&mut world, 3);
    request(&mut world, &killed);
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
    }
    assert_eq!(world.status().rebuilt.unwrap().number, 2);
    assert!(world.has_copy("etcd-0", 2) && world.forced.len() == 1);
}

/// A machine that does not respond is not awaited (gate 6), so an API server may continue on it beside a forced member. What it writes stays, and is
/// none of these histories.
fn silent_without_servers(world: &World, bits: u8) -> u8 {
    let has_none = |number: &usize| bits > 200 && bits & (1 << number) != 0 && !world.has_api_server(*number);
    (0..6).filter(has_none).fold(0, |silent, number| silent | 1 << number)
}

fn fate() -> impl Strategy<Value = DriverFate> {
    prop_oneof![
        3 => Just(DriverFate::Lives),
        1 => Just(DriverFate::DiesBeforeTheSave),
        1 => Just(DriverFate::DiesAfterTheSave),
        1 => Just(DriverFate::LosesTheOrder),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The world itself checks that a member is forced only on copied data while nothing else runs, and the plan checkers run in each pass.
    #[test]
    fn two_machines_are_lost_at_once_and_the_driver_dies_anywhere(
        rounds in vec((fate(), 0..7i64, any::<u8>()), 0..25),
        is_automatic in any::<bool>(),
        returns in any::<bool>(),
    ) {
        let mut world = World::settled(3);
        if is_automatic {
            change_spec(&mut world, |spec| spec.recovery = EtcdRecovery::Automatic);
        }
        let killed = kill(&mut world, 2);
        pass_twice(&mut world, 3);
        annotate(&mut world);
        if !is_automatic {
            request(&mut world, &killed);
        }
        for (fate, minutes, silent) in rounds {
            let silent = silent_without_servers(&world, silent);
            let _ = world.pass(&Round { silent, minutes, fate, ..calm(3) });
        }
        if returns {
            world.lost.clear();
            world.returned = true;
        }
        world.settle(3);
        // If the machines return before the survivor started alone, the store continues as it was.
        prop_assert!(world.status().rebuilt.is_some() || returns);
        prop_assert!(world.status().rebuild.is_none());
        prop_assert_eq!(world.forced.len(), usize::from(world.status().rebuilt.is_some()));
    }

    /// Without a request, and without lost machines, no store is rebuilt, whatever does not respond.
    #[test]
    fn a_partition_rebuilds_nothing(
        rounds in vec((any::<u8>(), 0..30i64), 0..25),
        is_automatic in any::<bool>(),
    ) {
        let mut world = World::settled(3);
        if is_automatic {
            change_spec(&mut world, |spec| spec.recovery = EtcdRecovery::Automatic);
        }
        for (silent, minutes) in rounds {
            let _ = world.pass(&Round { silent, minutes, ..calm(3) });
            prop_assert!(world.status().rebuild.is_none() && world.status().rebuilt.is_none());
        }
        prop_assert!(world.forced.is_empty());
    }
}
