//! Stores that are restored from a snapshot. The driver may die between any two steps.

use super::{change_spec, fate, kill, phase};
use crate::world::{Round, World, calm};
use keelway_api::{
    Time,
    name::{ComponentName, HypervisorName},
    restore::RestoreSpec,
    snapshots::{SnapshotDirectory, SnapshotRetention, SnapshotSinkSpec, SnapshotsSpec},
    store_rebuild::RebuildPhase,
};
use keelway_planner::{Plan, WaitBlocker};
use proptest::{collection::vec, prelude::*};

const SNAPSHOT: &str = "20261127T115200Z-7";

fn request(world: &mut World) {
    let request = RestoreSpec { snapshot: SNAPSHOT.to_owned(), requested_at: Time(world.now), cluster: None };
    let sink = SnapshotSinkSpec { directory: Some(SnapshotDirectory { path: "/srv/snapshots".to_owned() }), s3: None };
    let snapshots = SnapshotsSpec { schedule: String::new(), retention: SnapshotRetention::default(), sink };
    change_spec(world, |spec| {
        spec.snapshots = Some(snapshots);
        spec.restore = Some(request);
    });
}

fn blocked(plan: &Plan) -> Option<String> {
    let blockers = plan.waiting.iter().map(|waiting| &waiting.blocker);
    blockers.filter(|blocker| matches!(blocker, WaitBlocker::Restore(_))).map(ToString::to_string).next()
}

#[test]
fn a_restore_goes_step_by_step_and_adds_members_again() {
    let mut world = World::settled(3);
    let before = world.status();
    request(&mut world);
    let mut phases = Vec::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(3));
        phases.extend(phase(&world));
    }
    phases.dedup();
    let expected = [RebuildPhase::Stopping, RebuildPhase::Preparing, RebuildPhase::Starting, RebuildPhase::Serving];
    assert_eq!(phases, expected);
    world.settle(3);
    let after = world.status();
    assert!(after.members.keys().all(|name| !before.members.contains_key(name)), "no member of before is left");
    assert_ne!(after.cluster_id, before.cluster_id, "a member of before cannot join");
    assert_eq!(after.rebuilt.unwrap().member.as_str(), "etcd-3");
    let plan = world.pass(&calm(3));
    assert_eq!((plan.decisions, plan.waiting), (vec![], vec![]), "a request is executed once");
}

/// What makes a snapshot unusable, and a part of the text that reports it.
type SnapshotFault<'a> = (&'a dyn Fn(&mut World), &'a str);

#[test]
fn a_snapshot_that_cannot_be_used_stops_nothing() {
    let newer = |world: &mut World, kubernetes: &str, etcd: &str| {
        let found = world.snapshot.as_mut().unwrap();
        kubernetes.clone_into(&mut found.kubernetes);
        etcd.clone_into(&mut found.etcd);
    };
    let cases: [SnapshotFault<'_>; 4] = [
        (&|world| world.snapshot = Err("it does not exist".to_owned()), "it does not exist"),
        (&|world| newer(world, "1.38.1", "3.7.0"), "was taken from Kubernetes 1.38.1, and the cluster runs 1.37.0"),
        (&|world| newer(world, "1.37.2", "3.8.0"), "was taken from etcd 3.8.0"),
        (&|world| world.machines.values_mut().for_each(|state| state.restores = false), "a newer agent"),
    ];
    for (fault, expected) in cases {
        let mut world = World::settled(3);
        let running = world.digests();
        fault(&mut world);
        request(&mut world);
        for _ in 0..5 {
            let plan = world.pass(&calm(3));
            let text = blocked(&plan).unwrap();
            assert!(text.contains(expected) && text.contains("nothing is stopped until then"), "{text}");
            assert_eq!((phase(&world), world.digests()), (None, running.clone()), "{expected}");
        }
    }
}

#[test]
fn members_that_may_go_on_elsewhere_are_awaited() {
    let mut world = World::settled(3);
    let machines: Vec<usize> = world.members().values().map(|machine| world.number_of(machine)).collect();
    request(&mut world);
    let silent = Round { silent: (1 << machines[0]) | (1 << machines[1]), ..calm(3) };
    let plan = world.pass(&silent);
    assert!(blocked(&plan).unwrap().contains("could continue there"));
    assert_eq!(phase(&world), None);
}

/// A restore is also the end of a quorum that is lost with its data.
#[test]
fn a_store_of_which_all_machines_are_lost_is_restored() {
    let mut world = World::settled(3);
    let killed = kill(&mut world, 3);
    assert_eq!(killed.len(), 3);
    world.lost.clone().into_iter().for_each(|number| world.lose(number));
    request(&mut world);
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
    }
    assert_eq!(world.status().rebuilt.unwrap().number, 1);
}

#[test]
fn a_request_that_is_removed_brings_the_members_of_before_back() {
    let mut world = World::settled(3);
    let before = world.status();
    request(&mut world);
    while phase(&world) != Some(RebuildPhase::Preparing) {
        let _ = world.pass(&calm(3));
    }
    change_spec(&mut world, |spec| spec.restore = None);
    world.settle(3);
    let after = world.status();
    assert_eq!(after.members.keys().collect::<Vec<_>>(), before.members.keys().collect::<Vec<_>>());
    assert_eq!((after.cluster_id, after.rebuild, after.rebuilt), (before.cluster_id, None, None));
}

/// A store whose restored member starts, with that member and its machine.
fn restored() -> (World, ComponentName, HypervisorName) {
    let mut world = World::settled(3);
    request(&mut world);
    while phase(&world) != Some(RebuildPhase::Starting) {
        let _ = world.pass(&calm(3));
    }
    let member = world.status().rebuild.unwrap().member;
    let machine = world.members()[&member].clone();
    (world, member, machine)
}

/// A store whose restored member starts, and is on a lost machine.
fn restored_and_lost() -> World {
    let (mut world, _, machine) = restored();
    let number = world.number_of(&machine);
    world.lost.insert(number);
    for _ in 0..3 {
        assert_eq!(blocked(&world.pass(&calm(3))), None, "the machine may return");
    }
    world.lose(number);
    let _ = world.pass(&calm(3));
    let text = blocked(&world.pass(&calm(3))).unwrap();
    assert!(text.contains(&format!("only {machine} had the restored data, and it is lost")), "{text}");
    assert_eq!(phase(&world), Some(RebuildPhase::Starting));
    world
}

#[test]
fn another_request_replaces_a_restore_whose_data_is_lost() {
    let mut world = restored_and_lost();
    let first = world.status().rebuild.unwrap().member;
    request(&mut world);
    world.settle(3);
    let status = world.status();
    assert!(status.rebuild.is_none() && status.rebuilt.unwrap().member != first);
}

#[test]
fn restored_data_that_its_machine_lost_is_reported() {
    let (mut world, _, machine) = restored();
    world.machines.get_mut(&machine).unwrap().data.clear();
    let text = blocked(&world.pass(&calm(3))).unwrap();
    assert!(text.contains(&format!("only {machine} had the restored data, and it is lost")), "{text}");
}

/// A new cluster that begins with a snapshot has no earlier members.
#[test]
fn a_new_cluster_that_lost_its_data_has_to_begin_again() {
    let (mut world, member, machine) = restored();
    world.machines.get_mut(&machine).unwrap().data.clear();
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    let store = cluster.status.as_mut().unwrap().etcd.as_mut().unwrap();
    store.members.retain(|name, _| *name == member);
    let (plan, ..) = world.decide(&calm(3));
    let text = blocked(&plan).unwrap();
    assert!(text.contains("run `keelway cluster delete`, and begin the cluster again"), "{text}");
}

#[test]
fn a_restore_whose_data_is_lost_can_be_given_up() {
    let mut world = restored_and_lost();
    let before = ["etcd-0", "etcd-1", "etcd-2"].map(|name| name.parse().unwrap());
    change_spec(&mut world, |spec| spec.restore = None);
    world.store = world.before_restore.take();
    world.settle(3);
    let status = world.status();
    assert!(status.rebuild.is_none() && status.rebuilt.is_none());
    assert!(before.iter().all(|name| world.members().contains_key(name)), "{:?}", world.members());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_driver_dies_anywhere_in_a_restore(rounds in vec((fate(), 0..7i64, any::<u8>()), 0..25)) {
        let mut world = World::settled(3);
        request(&mut world);
        for (fate, minutes, silent) in rounds {
            let silent = if silent > 200 { silent & 0b11_1111 } else { 0 };
            let _ = world.pass(&Round { silent, minutes, fate, ..calm(3) });
        }
        world.settle(3);
        prop_assert!(world.status().rebuilt.is_some() && world.status().rebuild.is_none());
    }
}
