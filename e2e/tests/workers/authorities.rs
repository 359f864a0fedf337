//! Authorities of a cluster with workers are rotated: those of the connections to kubelets, and to aggregated API servers.

use keelway_api::{documents::SecretName, rotation::RotatedKey};
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::access;

const AUTHORITIES: [&str; 4] = ["--authority", "front-proxy", "--authority", "infrastructure"];
/// The ConfigMap by which aggregated API servers know the authority of API servers.
const AUTHENTICATION: [&str; 4] = ["configmap", "extension-apiserver-authentication", "--namespace", "kube-system"];

pub(crate) fn rotate(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    for complete in [&[][..], &["--complete"][..]] {
        worker_fleet.write(&[&["cluster", "rotate", "--name", cluster.name], &AUTHORITIES[..], complete].concat());
        worker_fleet.reconcile();
        access::logs(cluster);
        access::top(cluster);
    }
    // As docs/rotation.md says: API servers write only what they know themselves into a new one.
    let _ = cluster.kubectl.run(&[&["delete"], &AUTHENTICATION[..]].concat()).succeeded();
    let active = active(worker_fleet, cluster);
    deadline::until("only the new authority is known", deadline::KUBERNETES, || {
        let output = ["--output", "jsonpath={.data.requestheader-client-ca-file}"];
        let finished = cluster.kubectl.run(&[&["get"], &AUTHENTICATION[..], &output].concat());
        finished.code() == 0 && finished.text().trim() == active.trim()
    });
    access::top(cluster);
}

/// Returns the certificate of the front-proxy authority. No other generation is left.
fn active(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> String {
    let documents = worker_fleet.documents();
    let found = cluster.document(&documents);
    for key in [RotatedKey::FrontProxyAuthority, RotatedKey::InfrastructureAuthority] {
        assert!(!found.rotation(key).unwrap().is_running(), "{:?}", found.rotation(key));
    }
    let secret = &documents.secrets[&SecretName::of(found.id().unwrap(), "front-proxy-ca")];
    let data = secret.data.as_ref().unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["active.crt", "active.key", "bundle.crt"]);
    String::from_utf8(data["active.crt"].0.clone()).unwrap()
}
