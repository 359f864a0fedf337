//! What keeps a store from being rebuilt.

use keelway_api::{
    Time,
    jiff::SignedDuration,
    machine::{FormatRange, ObservedValue},
    store_rebuild::{EtcdRecovery, QuorumRecovery},
};

use super::{annotate, change_spec, kill, lost_quorum, pass_twice, phase, request, without_quorum};
use crate::world::{Round, World, calm};

/// What the next passes wait for, none of which rebuilds anything.
fn blocked(world: &mut World, round: &Round) -> String {
    let mut text = String::new();
    for _ in 0..3 {
        let plan = world.pass(round);
        assert_eq!(phase(world), None);
        text = lost_quorum(&plan).unwrap_or_else(|| panic!("{:?}", plan.waiting));
    }
    text
}

#[test]
fn a_request_that_names_a_member_that_responds_is_refused() {
    let (mut world, mut killed) = without_quorum(3, 2);
    killed.push("etcd-0".parse().unwrap());
    request(&mut world, &killed);
    let text = blocked(&mut world, &calm(3));
    assert!(text.contains("spec.etcd.recoverQuorum says that etcd-0 is lost, and it responds"), "{text}");
}

#[test]
fn a_request_that_does_not_name_all_is_not_enough() {
    let (mut world, killed) = without_quorum(3, 2);
    request(&mut world, &killed[..1]);
    let text = blocked(&mut world, &calm(3));
    assert!(text.contains("spec.etcd.recoverQuorum does not name etcd-1"), "{text}");
}

#[test]
fn a_request_from_before_the_loss_counts_for_nothing() {
    let mut world = World::settled(3);
    let early = QuorumRecovery {
        requested_at: Time(world.now),
        lost: ["etcd-1", "etcd-2"].map(|name| name.parse().unwrap()).to_vec(),
    };
    change_spec(&mut world, |spec| spec.recover_quorum = Some(early));
    for _ in 0..3 {
        let _ = world.pass(&calm(3));
        assert_eq!(phase(&world), None, "a majority works");
    }
    let _ = kill(&mut world, 2);
    pass_twice(&mut world, 3);
    let text = blocked(&mut world, &calm(3));
    assert!(text.contains("keelway cluster recover-quorum"), "{text}");
}

#[test]
fn a_request_while_a_majority_works_does_nothing() {
    let mut world = World::settled(3);
    let killed = kill(&mut world, 1);
    pass_twice(&mut world, 3);
    request(&mut world, &killed);
    for _ in 0..3 {
        let _ = world.pass(&calm(3));
        assert_eq!((phase(&world), world.status().quorum_lost_since), (None, None));
    }
}

#[test]
fn unreachable_machines_alone_are_not_enough_for_an_automatic_recovery() {
    let (mut world, _) = without_quorum(3, 2);
    change_spec(&mut world, |spec| spec.recovery = EtcdRecovery::Automatic);
    let later = Round { minutes: 60, ..calm(3) };
    let text = blocked(&mut world, &later);
    assert!(text.contains("etcd-1, etcd-2 may serve where Keelway cannot reach them"), "{text}");
}

#[test]
fn an_automatic_recovery_needs_machines_that_are_marked_as_lost() {
    let (mut world, _) = without_quorum(3, 2);
    change_spec(&mut world, |spec| spec.recovery = EtcdRecovery::Automatic);
    annotate(&mut world);
    let _ = world.pass(&calm(3));
    assert!(phase(&world).is_some());
}

#[test]
fn with_one_lost_machine_an_automatic_recovery_waits_for_the_other_one_as_long_as_for_any_member() {
    let (mut world, killed) = without_quorum(3, 2);
    change_spec(&mut world, |spec| spec.recovery = EtcdRecovery::Automatic);
    let machine = world.members()[&killed[0]].clone();
    world.lose(world.number_of(&machine));
    let text = blocked(&mut world, &calm(3));
    assert!(text.contains("their machines: if they do not respond until"), "{text}");
    world.now += SignedDuration::from_mins(10);
    let _ = world.pass(&calm(3));
    assert!(phase(&world).is_some());
}

#[test]
fn an_agent_that_cannot_copy_keeps_the_store_as_it_is() {
    let (mut world, killed) = without_quorum(3, 2);
    let member = world.members()[&"etcd-0".parse().unwrap()].clone();
    world.machines.get_mut(&member).unwrap().formats = FormatRange::OF_V0_1_0;
    request(&mut world, &killed);
    let text = blocked(&mut world, &calm(3));
    assert!(text.contains("to run an agent of this release"), "{text}");
}

#[test]
fn a_member_that_is_down_on_a_machine_that_responds_is_awaited() {
    let (mut world, killed) = without_quorum(3, 2);
    change_spec(&mut world, |spec| spec.recovery = EtcdRecovery::Automatic);
    let machine = world.members()[&killed[0]].clone();
    let number = world.number_of(&machine);
    world.lost.remove(&number);
    world
        .machines
        .get_mut(&machine)
        .unwrap()
        .sandboxes
        .retain(|sandbox| !sandbox.pod.component.as_str().starts_with("etcd-"));
    let (plan, _, _) = world.decide(&calm(3));
    let text = lost_quorum(&plan).unwrap();
    assert!(text.contains("to start: its machine") && text.contains("may have newer data"), "{text}");
}

#[test]
fn nothing_is_decided_where_no_member_responds() {
    let mut world = World::settled(3);
    let all = Round { silent: u8::MAX, ..calm(3) };
    for _ in 0..5 {
        let plan = world.pass(&all);
        assert_eq!((lost_quorum(&plan), world.status().quorum_lost_since), (None, None));
    }
    let seen = world.observe(&all);
    assert!(
        seen.stores
            .values()
            .flat_map(|store| store.members.values())
            .all(|found| matches!(found, ObservedValue::Unreachable { .. }))
    );
}
