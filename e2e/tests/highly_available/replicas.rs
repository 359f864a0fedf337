//! Replicas of a role run on different machines. Where only one may act, one acts.

use keelway_api::{Component, role::Role};
use keelway_e2e::{Plane, deadline, metrics};

/// The status of a healthy cluster with all its replicas fits on a screen.
pub(crate) fn fit_on_a_screen(plane: &Plane<'_>) {
    let status = plane.keelway.run(&["status"], &plane.text).succeeded();
    assert!(status.text().lines().count() <= 24, "{}", status.text());
    assert!(status.text().contains("3/3"), "{}", status.text());
}

/// Each Lease has a holder, and exactly one cluster-controller acts.
pub(crate) fn elect_leaders(plane: &Plane<'_>) {
    for role in [Role::KubeControllerManager, Role::KubeScheduler] {
        let name = role.to_string();
        let lease = || plane.kubectl.run(&["get", "lease", "-n", "kube-system", &name, "-o", "json"]);
        deadline::until(&format!("a leader of {name}"), deadline::KUBERNETES, || lease().code() == 0);
        let spec = lease().json()["spec"].clone();
        assert!(!spec["holderIdentity"].as_str().unwrap().is_empty(), "{spec}");
        assert_eq!(spec["leaseDurationSeconds"], 15, "{spec}");
    }
    deadline::until("one cluster-controller acts", deadline::KUBERNETES, || {
        let metrics_of = |replica: &Component| {
            metrics::read(&plane.directory(replica, "run").join("metrics.sock"), replica.spec.user)
        };
        let all: String = plane.of_role(Role::ClusterController).into_iter().map(metrics_of).collect();
        metrics::sum(&all, "keelway_cluster_controller_leading") == 1
    });
}
