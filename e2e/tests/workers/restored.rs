//! The store of a cluster with workers is restored from a snapshot: the workers and their pods continue.

use keelway_api::snapshots::SnapshotsSpec;
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};
use serde_json::json;

pub(crate) fn keeps_workers_and_pods(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let place = worker_fleet.fleet.keelway.directory().join("nobody/snapshots");
    let spec = json!({"sink": {"directory": {"path": place}}, "schedule": ""});
    let spec: SnapshotsSpec = serde_json::from_value(spec).unwrap();
    worker_fleet.change(cluster, |cluster| cluster.etcd.snapshots = Some(spec));
    let create = |name: &str| cluster.kubectl.run(&["create", "configmap", name]).succeeded();
    let _ = create("before-restore");
    let created = worker_fleet.keelway(&["snapshot", "create", cluster.name]).succeeded();
    let _ = create("after-snapshot");
    // The restored store has the states of containers as they were, so the containers are asked.
    let pods = cluster.workers.iter().map(|worker| format!("six-{worker}"));
    let pods: Vec<String> = pods.collect();
    for pod in &pods {
        assert_eq!(cluster.shell(pod, "echo kept > /tmp/of-container").code(), 0);
    }

    let snapshot = created.text().trim();
    worker_fleet.write(&["cluster", "restore", "--name", cluster.name, "--snapshot", snapshot]);
    worker_fleet.reconcile();
    deadline::until("the API serves what the snapshot has", deadline::KUBERNETES, || {
        cluster.kubectl.run(&["get", "configmap", "before-restore"]).code() == 0
    });
    let lost = cluster.kubectl.run(&["get", "configmap", "after-snapshot"]);
    assert!(lost.stderr.contains("NotFound"), "{}", lost.stderr);
    cluster.are_ready();
    for pod in &pods {
        let read = "read found < /tmp/of-container; echo $found";
        deadline::until("a pod answers through the API again", deadline::KUBERNETES, || {
            cluster.shell(pod, "true").code() == 0
        });
        assert_eq!(cluster.shell(pod, read).text().trim(), "kept", "the container of {pod} was restarted");
    }
}
