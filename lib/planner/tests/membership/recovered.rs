//! Documents of an older backup, after members of the store were replaced.

use std::collections::BTreeMap;

use keelway_api::{
    Documents,
    cluster::EtcdStatus,
    name::{ComponentName, PodName},
    store_observation::MemberId,
};
use keelway_planner::{DifferenceKind, Recovery, Remedy};
use proptest::{collection::vec, prelude::*};

use super::round;
use crate::world::{Round, World, calm};

fn ids(store: &EtcdStatus) -> Vec<(ComponentName, MemberId)> {
    store.staying_members().map(|(name, member)| (name.clone(), member.id.parse().unwrap())).collect()
}

fn of_members(digests: BTreeMap<PodName, String>) -> BTreeMap<PodName, String> {
    digests.into_iter().filter(|(pod, _)| pod.component.as_str().starts_with("etcd-")).collect()
}

fn attention(recovery: &Recovery) -> Vec<String> {
    let needs = recovery.differences.iter().filter(|found| found.kind.remedy() == Remedy::NeedsAttention);
    needs.map(|found| format!("{}: {}", found.subject, found.kind)).collect()
}

fn subjects(recovery: &Recovery, which: impl Fn(&DifferenceKind) -> bool) -> Vec<&str> {
    recovery.differences.iter().filter(|found| which(&found.kind)).map(|found| found.subject.as_str()).collect()
}

/// A world in which etcd-3 has replaced a member, and the documents of before.
fn replaced() -> (World, Documents, ComponentName) {
    let mut world = World::settled(3);
    let backup = world.documents.clone();
    let (component, machine) = world.leader();
    let drained = Round { drained: 1 << world.number_of(&machine), ..calm(3) };
    for _ in 0..40 {
        let _ = world.pass(&drained);
    }
    world.settle(3);
    assert!(!world.members().contains_key(&component));
    (world, backup, component)
}

#[test]
fn members_that_were_replaced_since_the_backup_are_taken_from_the_member_list() {
    let (mut world, backup, gone) = replaced();
    let (newest, digests) = (world.status(), world.digests());
    let recovery = world.recover(&backup, true);
    assert_eq!(attention(&recovery), [""; 0]);
    assert_eq!(subjects(&recovery, |kind| matches!(kind, DifferenceKind::MemberAdded { .. })), ["c1/etcd-3"]);
    assert_eq!(subjects(&recovery, |kind| *kind == DifferenceKind::MemberRemoved), [format!("c1/{gone}")]);
    assert_eq!(ids(&world.status()), ids(&newest));
    assert_eq!(world.status().next_index, newest.next_index);
    world.settle(3);
    assert_eq!(world.digests(), digests, "nothing is restarted");
    assert_eq!(world.status().members, newest.members);
}

#[test]
fn without_a_member_list_the_cluster_is_paused_and_nothing_stops() {
    let (mut world, backup, _) = replaced();
    let digests = world.digests();
    let recovery = world.recover(&backup, false);
    assert_eq!(subjects(&recovery, |kind| *kind == DifferenceKind::Paused), ["c1"]);
    for _ in 0..5 {
        let _ = world.pass(&calm(3));
    }
    let now = world.digests();
    assert!(digests.keys().all(|pod| now.contains_key(pod)));
    // Recovered again before a pass, once the store responds.
    let (mut world, backup, _) = replaced();
    let _ = world.recover(&backup, false);
    assert_eq!(attention(&world.recover(&backup, true)), [""; 0]);
}

/// The status of the cluster was lost: the store is rebuilt from the machines and the member list alone.
#[test]
fn a_store_without_a_record_is_rebuilt_from_the_member_list() {
    for all_are_replaced in [false, true] {
        let (mut world, mut backup, _) = replaced();
        if all_are_replaced {
            for name in ["etcd-0", "etcd-1", "etcd-2"] {
                let machine = world.members().get(&name.parse::<ComponentName>().unwrap()).cloned();
                let Some(machine) = machine else { continue };
                let drained = Round { drained: 1 << world.number_of(&machine), ..calm(3) };
                for _ in 0..40 {
                    let _ = world.pass(&drained);
                }
            }
            world.settle(3);
        }
        let (newest, digests) = (world.status(), world.digests());
        for cluster in backup.clusters.values_mut() {
            let status = cluster.status.as_mut().unwrap();
            (status.etcd, status.birth) = (None, None);
        }
        let stale: Vec<_> =
            backup.components.keys().filter(|pod| pod.component.as_str().starts_with("etcd-")).cloned().collect();
        for pod in &stale {
            backup.components.remove(pod);
        }
        let recovery = world.recover(&backup, true);
        assert_eq!(attention(&recovery), [""; 0]);
        assert_eq!((ids(&world.status()), world.status().cluster_id), (ids(&newest), newest.cluster_id));
        world.settle(3);
        assert_eq!(world.digests(), digests, "nothing is restarted");
    }
}

/// Components of other roles stay where they are: documents that name their earlier ports are not recovered. A member whose addition was withdrawn
/// after the backup, as after a change of the replicas, is reported and needs a person.
fn undrained() -> impl Strategy<Value = Round> {
    round().prop_map(|round| Round { drained: 0, silent: 0, replicas: 3, ..round })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn documents_of_any_age_are_recovered(
        before in vec((undrained(), 1..6usize), 0..4),
        after in vec((undrained(), 1..6usize), 0..6),
    ) {
        let mut world = World::settled(3);
        for (round, times) in &before {
            for _ in 0..*times {
                let _ = world.pass(round);
            }
        }
        let mut backup = world.documents.clone();
        for (round, times) in &after {
            for _ in 0..*times {
                let _ = world.pass(round);
            }
        }
        world.settle(3);
        let (newest, digests) = (world.status(), world.digests());
        // The manifests of the user are current.
        for (name, cluster) in backup.clusters.iter_mut() {
            cluster.spec.clone_from(&world.documents.clusters.get(name).unwrap().spec);
        }
        for (name, machine) in backup.hypervisors.iter_mut() {
            machine.spec.clone_from(&world.documents.hypervisors.get(name).unwrap().spec);
        }
        let recovery = world.recover(&backup, true);
        prop_assert_eq!(attention(&recovery), [""; 0]);
        prop_assert_eq!(ids(&world.status()), ids(&newest));
        world.settle(3);
        // API servers may have waited for their turn before.
        prop_assert_eq!(of_members(world.digests()), of_members(digests));
    }
}
