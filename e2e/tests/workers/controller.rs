//! The metrics of cluster-controllers, and their containers.

use std::collections::BTreeSet;

use keelway_api::{Component, role::Role};
use keelway_e2e::{
    TestMachine, deadline, metrics,
    worker_fleet::{TestCluster, WorkerFleet},
};

/// The metrics that root can read on the machines count one leader, and the work for workers that joined.
pub(crate) fn counts_what_it_did(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let sockets = worker_fleet.each(cluster, Role::ClusterController, |component, machine| {
        let (id, name) = (&component.spec.cluster_id, component.spec.name().unwrap());
        (machine.path(&format!("/var/lib/keelway/{id}/{name}/run/metrics.sock")), component.spec.user)
    });
    let all = || sockets.iter().map(|(socket, user)| metrics::read(socket, *user)).collect::<String>();
    let sum = |metric: &str| metrics::sum(&all(), &format!("keelway_cluster_controller_{metric}"));
    let workers = u64::try_from(cluster.workers.len()).unwrap();
    deadline::until("each worker has a certificate as a client and one to serve with", deadline::KUBERNETES, || {
        sum("certificate_requests_total{decision=\"Approved\"") >= 2 * workers
    });
    assert_eq!(sum("leading"), 1, "{}", all());
    assert!(sum("address_allocations_total") >= workers, "{}", all());
    assert!(sum("applications_total") > 0, "{}", all());
}

/// Returns the container ids of the cluster-controllers.
pub(crate) fn containers(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> BTreeSet<String> {
    let container = |component: &Component, machine: &TestMachine| machine.of(component).unwrap().container;
    worker_fleet.each(cluster, Role::ClusterController, container).into_iter().collect()
}
