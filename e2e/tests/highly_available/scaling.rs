//! Numbers of replicas that change under load.

use std::collections::BTreeSet;

use keelway_api::role::Role;
use keelway_e2e::load::Load;

use crate::plane::Plane;

/// If the number of etcd members changes after the store was created, the plan keeps the members and states the reason.
pub(crate) fn members_stay(plane: &Plane<'_>) {
    let plan = plane.plan(&plane.changed(|spec| spec.etcd.replicas = 5));
    let reason =
        "waits for spec.etcd.replicas to be set back: changing the members of a created store is not supported yet";
    for member in ["etcd-3", "etcd-4"] {
        assert!(plan.contains(&format!("c1/{member} {reason}")), "{plan}");
    }
    let plan = plane.plan(&plane.changed(|spec| spec.etcd.replicas = 1));
    assert!(plan.contains(&format!("c1/etcd-2 {reason}")), "{plan}");
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
