//! Numbers of replicas that change under load.

use std::collections::BTreeSet;

use keelway_api::{Documents, cluster::EtcdStatus, name::ComponentName, role::Role};
use keelway_e2e::{Plane, TestMachine, load::Load, plane::store::PlaneStore};

/// etcd is scaled to these numbers of members. Learners are promoted, the leader moves, and API servers follow.
pub(crate) fn members_change(plane: &mut Plane<'_>, members: &[u32]) {
    let plan = plane.plan(&scaled(plane, 1));
    assert!(plan.contains("remove the etcd member c1/etcd-2"), "{plan}");
    let backup = plane.text.clone();
    let load = Load::start(&plane.kubectl);
    for &replicas in members {
        plane.apply(&scaled(plane, replicas));
        assert_eq!(plane.of_role(Role::Etcd).len(), replicas as usize);
        let store = plane.cluster().status.as_ref().unwrap().etcd.as_ref().unwrap();
        assert_eq!((store.members.len(), &store.change), (replicas as usize, &None));
        assert_eq!(PlaneStore::of(plane).voters().len(), replicas as usize);
    }
    // Machines without an agent store no config.
    if plane.machines.iter().all(TestMachine::has_agent) {
        members_are_recovered(plane, &backup);
    }
    load.end().assert_good();
}

/// Returns the documents with another number of etcd members.
fn scaled(plane: &Plane<'_>, replicas: u32) -> Vec<u8> {
    let scale = ["cluster", "scale", "--name", "c1", "--etcd-replicas", &replicas.to_string()];
    plane.keelway.run(&scale, &plane.text).succeeded().stdout
}

/// Documents from before the members changed are recovered: the member list of the store shows which members joined and left.
fn members_are_recovered(plane: &mut Plane<'_>, backup: &[u8]) {
    let (pids, before) = (plane.pids(), members(&plane.documents));
    let recovered = plane.keelway.run(&["recover"], backup).succeeded();
    assert!(recovered.stderr.contains("is an etcd member on "), "{}", recovered.stderr);
    assert!(recovered.stderr.contains("is no etcd member any more"), "{}", recovered.stderr);
    assert_eq!(members(&Documents::read(&recovered.stdout).unwrap()), before);
    plane.apply(&recovered.stdout);
    assert_eq!((plane.pids(), members(&plane.documents)), (pids, before), "nothing is restarted");
}

/// The members of the store, with their ids.
fn members(documents: &Documents) -> Vec<(ComponentName, String)> {
    let statuses = documents.clusters.values().filter_map(|cluster| cluster.status.as_ref()?.etcd.as_ref());
    let members = statuses.flat_map(EtcdStatus::staying_members);
    members.map(|(name, member)| (name.clone(), member.id.clone())).collect()
}

/// The machine of the leader is drained: its member is replaced, and nothing of the cluster stays there.
pub(crate) fn the_leader_is_drained(plane: &mut Plane<'_>) {
    let load = Load::start(&plane.kubectl);
    let leader = PlaneStore::of(plane).leader().clone();
    let (name, machine) = (leader.spec.name().unwrap().to_string(), leader.spec.hypervisor.to_string());
    let before = PlaneStore::of(plane).voters();
    load.wait_for_requests(50);
    let set = |plane: &mut Plane<'_>, change: &str| {
        let changed = plane.keelway.run(&["hypervisor", change, &machine], &plane.text).succeeded().stdout;
        plane.apply(&changed);
    };
    set(plane, "drain");
    let after = PlaneStore::of(plane).voters();
    assert_eq!((before.len(), after.len(), after.contains(&name)), (3, 3, false), "{after:?} after {before:?}");
    let left = plane.components().find(|component| component.spec.hypervisor.as_str() == machine);
    assert!(left.is_none(), "{:?} is on {machine}", left.map(|component| component.spec.name()));
    set(plane, "uncordon");
    load.wait_for_requests(50);
    load.end().assert_good();
}

/// API servers, controllers and ingresses are scaled down to one and up to three or two. haproxy keeps running.
pub(crate) fn no_request_fails(plane: &mut Plane<'_>) {
    let load = Load::start(&plane.kubectl);
    let haproxies = containers(plane, Role::Ingress);
    for replicas in [1, 3] {
        plane.reconcile(|spec| spec.control_plane.replicas = replicas);
        assert_eq!(plane.of_role(Role::KubeApiserver).len(), replicas as usize);
        assert_eq!(plane.of_role(Role::KubeScheduler).len(), replicas as usize);
    }
    assert_eq!(containers(plane, Role::Ingress), haproxies, "a haproxy was restarted");
    let (servers, controllers) = (containers(plane, Role::KubeApiserver), containers(plane, Role::ClusterController));
    for replicas in [1, 2] {
        plane.reconcile(|spec| spec.ingress.replicas = replicas);
        assert_eq!(plane.of_role(Role::Ingress).len(), replicas as usize);
    }
    assert_eq!(containers(plane, Role::KubeApiserver), servers, "an API server was restarted");
    assert_eq!(containers(plane, Role::ClusterController), controllers, "a cluster-controller was restarted");
    load.end().assert_good();
}

fn containers(plane: &Plane<'_>, role: Role) -> BTreeSet<String> {
    plane.of_role(role).iter().map(|component| plane.container(component)).collect()
}
