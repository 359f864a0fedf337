//! A user deletes the Node of a running worker.

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet, serves},
};

use crate::CLEAN;

pub(crate) fn is_registered_again(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let (worker, node) = (worker_fleet.worker(name), format!("node/{name}"));
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    let kubectl = |arguments: &[&str]| cluster.kubectl.run(arguments).succeeded();
    let pod = format!("on-{name}");
    cluster.start("app=deleted-node", &[serves(&pod, "deleted-node", name)]);
    let _ = kubectl(&["label", "node", name, "rack=r1"]);
    let _ = kubectl(&["taint", "node", name, "dedicated=row:NoSchedule"]);
    deadline::until("the worker remembers the taint", deadline::KUBERNETES, || {
        worker.shell("grep -c dedicated /var/lib/keelway-node/node-record.json").code() == 0
    });
    let uid = |object: &str| {
        cluster.kubectl.run(&["get", object, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"]).text().to_owned()
    };
    let (before, pod_before) = (uid(&node), uid(&format!("pod/{pod}")));

    let _ = kubectl(&["delete", "node", name]);
    deadline::until("the Node is registered again", deadline::KUBERNETES, || {
        let now = uid(&node);
        !now.is_empty() && now != before
    });
    cluster.kubectl.wait("condition=Ready", &[&node]);
    cluster.kubectl.wait("condition=NetworkUnavailable=False", &[&node]);
    assert_eq!(cluster.value(&node, "{.metadata.labels.rack}"), "r1");
    assert!(cluster.value(&node, "{.spec.taints[*].key}").contains("dedicated"));
    answers(cluster, &pod);
    assert_eq!(uid(&format!("pod/{pod}")), pod_before, "the pod was not replaced");
    deadline::until("node status ends with 0", deadline::KUBERNETES, || {
        worker.run(&["keelway", "node", "status"], &[]).code() == 0
    });

    let _ = kubectl(&["delete", "wireguardpeer", name]);
    deadline::until("node status names the eviction", deadline::KUBERNETES, || {
        let status = worker.run(&["keelway", "node", "status"], &[]);
        status.code() == 1 && status.text().contains("keelway node forget")
    });
    assert_eq!(uid(&node), "", "an evicted worker is not registered again");
}

/// The pod has an address of the worker's ranges, at which a pod of another worker reaches it.
fn answers(cluster: &TestCluster, pod: &str) {
    deadline::until(&format!("{pod} is reached"), deadline::KUBERNETES, || {
        let address = cluster.value(&format!("pod/{pod}"), "{.status.podIP}");
        let asked = format!("/agnhost connect --timeout=2s {address}:8080");
        !address.is_empty() && cluster.shell(&format!("on-{CLEAN}"), &asked).code() == 0
    });
}
