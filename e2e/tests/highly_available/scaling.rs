//! Numbers of replicas that change under load.

use std::collections::BTreeSet;

use keelway_api::role::Role;
use keelway_e2e::load::Load;

use crate::{plane::Plane, store::Store};

/// etcd is scaled down to one member and up again: learners are promoted, the leader moves, and API servers follow.
pub(crate) fn members_change(plane: &mut Plane<'_>) {
    let plan = plane.plan(&plane.changed(|spec| spec.etcd.replicas = 1));
    assert!(plan.contains("remove the etcd member c1/etcd-2"), "{plan}");
    let load = Load::start(&plane.kubectl);
    for replicas in [1, 3] {
        plane.reconcile(|spec| spec.etcd.replicas = replicas);
        assert_eq!(plane.of_role(Role::Etcd).len(), replicas as usize);
        let store = plane.cluster().status.as_ref().unwrap().etcd.as_ref().unwrap();
        assert_eq!((store.members.len(), &store.change), (replicas as usize, &None));
        assert_eq!(Store::of(plane).voters().len(), replicas as usize);
    }
    load.end().assert_good();
}

/// API servers, controllers and ingresses are scaled down to one and up again. haproxy keeps running.
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
