//! Rebuilds with a planted fault: the plan checker reports each of them.

use keelway_api::{
    cluster::EtcdStatus,
    machine::{DataState, ObservedValue, copy_name},
    name::PodName,
    store_rebuild::RebuildPhase,
};
use keelway_planner::{PassObservation, Plan, invariants};

use super::{annotate, change_spec, kill, pass_twice, phase, request, without_quorum};
use crate::world::{World, calm};

/// A rebuild that has reached this phase.
fn at(wanted: RebuildPhase) -> World {
    let (mut world, killed) = without_quorum(3, 2);
    annotate(&mut world);
    request(&mut world, &killed);
    for _ in 0..20 {
        let _ = world.pass(&calm(3));
        if phase(&world) == Some(wanted) {
            return world;
        }
    }
    panic!("it does not reach {wanted:?}");
}

fn store(plan: &mut Plan) -> &mut EtcdStatus {
    let cluster = plan.documents.clusters.values_mut().next().unwrap();
    cluster.status.as_mut().unwrap().etcd.as_mut().unwrap()
}

fn is_found(world: &World, plan: &Plan, seen: &PassObservation, invariant: &str) -> bool {
    let found = invariants::check(&world.documents, &plan.documents, seen);
    found.iter().any(|violation| violation.invariant.contains(invariant))
}

/// Plants a fault into the next plan of a rebuild in this phase.
fn plant(wanted: RebuildPhase, fault: impl FnOnce(&mut EtcdStatus), invariant: &str) {
    let mut world = at(wanted);
    let (mut plan, seen, _) = world.decide(&calm(3));
    fault(store(&mut plan));
    assert!(is_found(&world, &plan, &seen, invariant), "{invariant}");
}

const STEPS: &str = "a store is rebuilt step by step";
const ALONE: &str = "becomes the only one of its store on copied data";

#[test]
fn a_start_before_the_copy_is_found() {
    let to = |store: &mut EtcdStatus| store.rebuild.as_mut().unwrap().phase = RebuildPhase::Starting;
    plant(RebuildPhase::Stopping, to, STEPS);
    plant(RebuildPhase::Stopping, to, ALONE);
}

#[test]
fn a_copy_of_before_is_found() {
    let (mut world, killed) = without_quorum(3, 2);
    annotate(&mut world);
    request(&mut world, &killed);
    let (mut plan, mut seen, _) = world.decide(&calm(3));
    let (member, number) = (store(&mut plan).rebuild.as_ref().unwrap().member.clone(), 1);
    assert_eq!(store(&mut plan).rebuild.as_ref().unwrap().number, number);
    let machine = &world.members()[&member];
    let ObservedValue::Known(state) = &mut **seen.machines.get_mut(machine).unwrap() else { panic!("{machine}") };
    let pod = PodName { cluster: world.id(), component: member };
    state.data.insert(format!("{pod}/{}", copy_name("data", number)), DataState { marked: true, used: true });
    assert!(is_found(&world, &plan, &seen, STEPS));
}

#[test]
fn a_second_forced_start_is_found() {
    let to = |store: &mut EtcdStatus| store.rebuild.as_mut().unwrap().phase = RebuildPhase::Starting;
    plant(RebuildPhase::Restarting, to, STEPS);
    let mut again = at(RebuildPhase::Serving).status().rebuild.unwrap();
    again.phase = RebuildPhase::Starting;
    plant(RebuildPhase::Serving, |store| store.rebuild = Some(again), STEPS);
}

#[test]
fn api_servers_beside_a_forced_member_are_found() {
    let to = |store: &mut EtcdStatus| store.rebuild.as_mut().unwrap().phase = RebuildPhase::Serving;
    plant(RebuildPhase::Starting, to, STEPS);
}

#[test]
fn an_end_before_an_api_server_serves_is_found() {
    plant(RebuildPhase::Starting, |store| store.rebuild = None, STEPS);
}

#[test]
fn another_member_in_the_middle_is_found() {
    let other = |store: &mut EtcdStatus| store.rebuild.as_mut().unwrap().member = "etcd-1".parse().unwrap();
    plant(RebuildPhase::Preparing, other, STEPS);
}

#[test]
fn a_rebuild_while_a_majority_works_is_found() {
    let mut rebuild = at(RebuildPhase::Stopping).status().rebuild.unwrap();
    rebuild.phase = RebuildPhase::Stopping;
    let mut world = World::settled(3);
    let (mut plan, seen, _) = world.decide(&calm(3));
    store(&mut plan).rebuild = Some(rebuild);
    assert!(is_found(&world, &plan, &seen, STEPS));
}

#[test]
fn a_rebuild_that_nothing_orders_is_found() {
    let rebuild = at(RebuildPhase::Stopping).status().rebuild.unwrap();
    let (mut world, _) = without_quorum(3, 2);
    change_spec(&mut world, |spec| spec.recover_quorum = None);
    let (mut plan, seen, _) = world.decide(&calm(3));
    store(&mut plan).rebuild = Some(rebuild);
    assert!(is_found(&world, &plan, &seen, STEPS));
}

#[test]
fn the_removal_of_data_before_the_end_is_found() {
    let remove = |store: &mut EtcdStatus| {
        let member = store.members.values_mut().next_back().unwrap();
        member.removal = Some(keelway_api::cluster::RemovalReason::StoreRebuilt);
    };
    plant(RebuildPhase::Stopping, remove, "only after its store removed it");
    plant(RebuildPhase::Starting, remove, STEPS);
}

/// Three of five: the two that remain are no majority either.
#[test]
fn a_rebuild_from_a_member_that_does_not_respond_is_found() {
    let mut world = World::settled(5);
    let killed = kill(&mut world, 3);
    pass_twice(&mut world, 5);
    request(&mut world, &killed);
    let (mut plan, seen, _) = world.decide(&calm(5));
    store(&mut plan).rebuild.as_mut().unwrap().member = killed[0].clone();
    assert!(is_found(&world, &plan, &seen, STEPS));
}
