//! The authority for API servers, users and workers is rotated. Workers stay, and their pods continue to run.

use std::fs;

use keelway_api::{
    documents::SecretName,
    rotation::{RotatedKey, RotationPhase},
};
use keelway_e2e::{
    Kubectl, deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{access, addons};

const ROTATE: [&str; 6] = ["cluster", "rotate", "--authority", "kubernetes", "--name", "c1"];
/// The pods that run on each worker, with the containers that they run in.
const CONTAINERS: [&str; 5] = [
    "get",
    "pods",
    "--selector=app=peer",
    "--output",
    "jsonpath={range .items[*]}{.status.containerStatuses[*].containerID} {end}",
];

/// Returns access to the cluster with a certificate of the next authority. Its name in documents is c1.
pub(crate) fn rotate(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> TestCluster {
    let before = worker_fleet.fleet.keelway.directory().join("before.kubeconfig");
    let _ = fs::copy(worker_fleet.fleet.keelway.directory().join("c1.kubeconfig"), &before).unwrap();
    let earlier = Kubectl::new(&before);
    let running = containers(cluster);

    worker_fleet.write(&ROTATE);
    worker_fleet.reconcile();
    assert_eq!(phase(worker_fleet, cluster), RotationPhase::Prepared);
    // Who knows only the previous authority still works.
    access::logs(cluster);
    access::top(cluster);
    let issuers = issuers(cluster);
    assert!(!issuers[0].is_empty() && issuers.iter().all(|issuer| *issuer == issuers[0]), "{issuers:?}");
    is_published(cluster, 2);
    add_ons_started_again(cluster);

    let next = worker_fleet.cluster(cluster.name, cluster.workers);
    worker_fleet.write(&[&ROTATE[..], &["--complete"]].concat());
    worker_fleet.reconcile();
    assert_eq!(phase(worker_fleet, cluster), RotationPhase::Completed);
    let refused = earlier.run(&["get", "nodes"]);
    assert!(refused.code() != 0 && refused.stderr.contains("x509"), "{}", refused.stderr);
    next.are_ready();
    is_published(&next, 1);
    access::logs(&next);
    access::top(&next);
    addons::all_are_there(&next);
    assert_eq!(containers(&next), running, "no container of a user was started again");
    only_the_next_is_left(worker_fleet, &next);
    next
}

fn containers(cluster: &TestCluster) -> String {
    cluster.kubectl.run(&CONTAINERS).succeeded().text().to_owned()
}

fn phase(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> RotationPhase {
    let documents = worker_fleet.documents();
    cluster.document(&documents).rotation(RotatedKey::KubernetesAuthority).unwrap().phase
}

/// Returns the authorities that issued the certificates of each worker.
fn issuers(cluster: &TestCluster) -> Vec<String> {
    let annotation = "{.metadata.annotations.keelway\\.dev/certificate-issuers}";
    cluster.workers.iter().map(|worker| cluster.value(&format!("node/{worker}"), annotation)).collect()
}

/// Pods see this number of authorities.
fn is_published(cluster: &TestCluster, number: usize) {
    let get = ["get", "configmap", "kube-root-ca.crt", "--output", "jsonpath={.data.ca\\.crt}"];
    deadline::until("the authorities are published to pods", deadline::KUBERNETES, || {
        let finished = cluster.kubectl.run(&get);
        finished.code() == 0 && finished.text().matches("BEGIN CERTIFICATE").count() == number
    });
}

/// Pods of add-ons read the authorities when they start.
fn add_ons_started_again(cluster: &TestCluster) {
    let annotation = "{.spec.template.metadata.annotations.keelway\\.dev/authority}";
    for (kind, name) in [("deployment", "coredns"), ("deployment", "metrics-server"), ("daemonset", "kube-proxy")] {
        let get = ["get", kind, name, "--namespace", "kube-system", "--output", &format!("jsonpath={annotation}")];
        deadline::until(&format!("{name} is to start again"), deadline::KUBERNETES, || {
            let finished = cluster.kubectl.run(&get);
            finished.code() == 0 && !finished.text().trim().is_empty()
        });
        let status =
            ["rollout", "status", &format!("{kind}/{name}"), "--namespace", "kube-system", "--timeout", "120s"];
        let _ = cluster.kubectl.run(&status).succeeded();
    }
}

fn only_the_next_is_left(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let documents = worker_fleet.documents();
    let id = cluster.document(&documents).id().unwrap();
    let data = documents.secrets[&SecretName::of(id, "kubernetes-ca")].data.as_ref().unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["active.crt", "active.key", "bundle.crt"]);
}
