//! The cluster's own credentials for the registry of its images, `spec.images.pullSecrets`.

use keelway_api::{
    ByteString, Secret,
    cluster::LocalSecretReference,
    documents::SecretName,
    registry::{PULL_SECRET, PULL_SECRET_KEY},
};
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};

const KUBELET: &str = "/var/lib/kubelet/config.json";

/// A worker receives the credentials when it joins, and again when they change. Another worker's pods have no access to them.
pub(crate) fn has_credentials(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    set_password(worker_fleet, cluster, "first");
    deadline::until("the credentials are published", deadline::KUBERNETES, || {
        let get = ["get", "configmap", "keelway-endpoints", "-n", "kube-system", "-o", "yaml"];
        cluster.kubectl.run(&get).text().contains("registryCredentials")
    });
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    let has = |password: &str| worker.shell(&format!("grep -cE '\"password\": *\"{password}\"' {KUBELET}")).code() == 0;
    assert!(has("first"), "they are there once the worker has joined");
    assert_eq!(worker.shell(&format!("stat -c %a {KUBELET}")).text().trim(), "600");
    set_password(worker_fleet, cluster, "second");
    deadline::until("the changed credentials are there", deadline::KUBERNETES, || has("second"));
}

fn set_password(worker_fleet: &WorkerFleet, cluster: &TestCluster, password: &str) {
    let config = format!(r#"{{"auths": {{"registry.k8s.io": {{"username": "user", "password": "{password}"}}}}}}"#);
    worker_fleet.edit(|documents| {
        let data = [(PULL_SECRET_KEY.to_owned(), ByteString(config.into_bytes()))];
        let mut secret = Secret { type_: Some(PULL_SECRET.to_owned()), data: Some(data.into()), ..Secret::default() };
        let document = documents.clusters.values_mut().find(|found| found.reference().name == cluster.name).unwrap();
        document.spec.images.pull_secrets = vec![LocalSecretReference { name: "regcred".to_owned() }];
        let namespace = document.reference().namespace;
        secret.metadata.name = Some("regcred".to_owned());
        secret.metadata.namespace = Some(namespace.clone());
        let _ = documents.secrets.insert(SecretName { namespace, name: "regcred".to_owned() }, secret);
    });
}
