//! Plans with a planted fault: the checkers report each of them.

use keelway_api::{
    cluster::{MemberPhase, RemovalReason},
    membership::{MembershipChange, MembershipChangeKind, MembershipReason},
    name::PodName,
};
use keelway_planner::{PassObservation, Plan, StoreOrder, invariants};

use crate::world::{Round, World, calm};

/// A plan of a drain of the leader that is about to do this, with its observation.
fn before(world: &mut World, is_due: impl Fn(&StoreOrder) -> bool) -> (Plan, PassObservation) {
    let (_, machine) = world.leader();
    let drained = Round { drained: 1 << world.number_of(&machine), ..calm(3) };
    for _ in 0..30 {
        let (plan, seen, _) = world.decide(&drained);
        if plan.stores.values().any(&is_due) {
            assert_eq!(invariants::check_stores(&plan, &seen), []);
            return (plan, seen);
        }
        let _ = world.pass(&drained);
    }
    panic!("the drain has no such order");
}

fn is_found(plan: &Plan, seen: &PassObservation) -> bool {
    !invariants::check_stores(plan, seen).is_empty()
}

fn is_found_in_documents(world: &World, plan: &Plan, seen: &PassObservation, invariant: &str) -> bool {
    let found = invariants::check(&world.documents, &plan.documents, seen);
    found.iter().any(|violation| violation.invariant.contains(invariant))
}

fn change_store(plan: &mut Plan, change: impl FnOnce(&mut keelway_api::cluster::EtcdStatus)) {
    let cluster = plan.documents.clusters.values_mut().next().unwrap();
    change(cluster.status.as_mut().unwrap().etcd.as_mut().unwrap());
}

#[test]
fn a_learner_while_a_voter_is_down_is_found() {
    let mut world = World::settled(3);
    let (plan, mut seen) = before(&mut world, |order| matches!(order, StoreOrder::AddLearner { .. }));
    let store = seen.stores.values_mut().next().unwrap();
    *store.members.values_mut().next().unwrap() = keelway_api::machine::ObservedValue::unreachable("planted");
    assert!(is_found(&plan, &seen));
}

#[test]
fn a_promotion_of_a_learner_that_lags_is_found() {
    let mut world = World::settled(3);
    let (plan, mut seen) = before(&mut world, |order| matches!(order, StoreOrder::Promote { .. }));
    let store = seen.stores.values_mut().next().unwrap();
    for report in store.members.values_mut() {
        if let keelway_api::machine::ObservedValue::Known(report) = report
            && report.is_learner
        {
            report.raft_index = 0;
        }
    }
    assert!(is_found(&plan, &seen));
}

#[test]
fn a_removal_that_ends_the_majority_is_found() {
    let mut world = World::settled(3);
    let (plan, mut seen) = before(&mut world, |order| matches!(order, StoreOrder::Remove { .. }));
    let Some(StoreOrder::Remove { component, .. }) = plan.stores.values().next() else { return };
    let store = seen.stores.values_mut().next().unwrap();
    let mut others: Vec<_> = store.members.iter_mut().filter(|(name, _)| *name != component).collect();
    for (_, report) in others.iter_mut().take(2) {
        **report = keelway_api::machine::ObservedValue::unreachable("planted");
    }
    assert!(is_found(&plan, &seen));
}

#[test]
fn a_removal_of_the_leader_is_found() {
    let mut world = World::settled(3);
    let (mut plan, seen) = before(&mut world, |order| matches!(order, StoreOrder::MoveLeader { .. }));
    let order = plan.stores.values_mut().next().unwrap();
    let StoreOrder::MoveLeader { from, .. } = order.clone() else { return };
    let (component, _) = world.members().into_iter().next().unwrap();
    *order = StoreOrder::Remove { component, id: from, reason: MembershipReason::MachineDrained };
    assert!(is_found(&plan, &seen));
}

/// A plan that places a new member beside another one, although its own machine has room.
#[test]
fn members_that_share_a_machine_are_found() {
    let mut world = World::settled(3);
    let (_, machine) = world.leader();
    let drained = Round { drained: 1 << world.number_of(&machine), ..calm(3) };
    let (mut plan, seen, _) = world.decide(&drained);
    let (_, beside) = world.members().into_iter().find(|(_, other)| *other != machine).unwrap();
    let is_new = |pod: &PodName| !world.documents.components.contains_key(pod);
    let new = plan.documents.components.keys().find(|pod| is_new(pod)).cloned().expect("a drain places another member");
    assert!(!is_found_in_documents(&world, &plan, &seen, "share a machine"));
    plan.documents.components.get_mut(&new).unwrap().spec.hypervisor = beside;
    assert!(is_found_in_documents(&world, &plan, &seen, "share a machine"));
}

#[test]
fn an_order_outside_of_the_recorded_change_is_found() {
    let mut world = World::settled(3);
    let (mut plan, seen) = before(&mut world, |order| matches!(order, StoreOrder::Promote { .. }));
    let (component, _) = world.members().into_iter().next().unwrap();
    let id = world.status().members[&component].id.parse().unwrap();
    *plan.stores.values_mut().next().unwrap() =
        StoreOrder::Remove { component, id, reason: MembershipReason::Replicas };
    assert!(is_found(&plan, &seen));
}

#[test]
fn a_second_change_is_found() {
    let mut world = World::settled(3);
    let (mut plan, seen) = before(&mut world, |order| matches!(order, StoreOrder::Promote { .. }));
    let (component, _) = world.members().into_iter().next().unwrap();
    let kind = MembershipChangeKind::Remove;
    let change = MembershipChange {
        kind,
        component,
        reason: MembershipReason::Replicas,
        peer_urls: vec![],
        api_servers_wait_since: None,
    };
    change_store(&mut plan, |store| store.change = Some(change));
    assert!(is_found_in_documents(&world, &plan, &seen, "one change of its members at a time"));
}

#[test]
fn the_removal_of_a_members_data_before_its_removal_is_found() {
    let mut world = World::settled(3);
    let (mut plan, seen) = before(&mut world, |order| matches!(order, StoreOrder::Remove { .. }));
    change_store(&mut plan, |store| {
        store.members.values_mut().next().unwrap().removal = Some(RemovalReason::MemberRemoved);
    });
    assert!(is_found_in_documents(&world, &plan, &seen, "only after its store removed it"));
}

#[test]
fn a_member_that_would_start_again_without_data_is_found() {
    let mut world = World::settled(3);
    let (mut plan, seen) = before(&mut world, |order| matches!(order, StoreOrder::Promote { .. }));
    change_store(&mut plan, |store| store.members.values_mut().for_each(|member| member.phase = MemberPhase::Pending));
    assert!(is_found_in_documents(&world, &plan, &seen, "keeps its id and never goes back"));
}

#[test]
fn a_name_that_is_used_again_is_found() {
    let mut world = World::settled(3);
    let (plan, seen) = before(&mut world, |order| matches!(order, StoreOrder::AddLearner { .. }));
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.status.as_mut().unwrap().etcd.as_mut().unwrap().next_index = Some(9);
    assert!(is_found_in_documents(&world, &plan, &seen, "never used again"));
}
