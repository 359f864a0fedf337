//! What would make an upgrade fail keeps it from beginning.

use keelway_api::{Component, release::Release};
use keelway_e2e::worker_fleet::{TestCluster, WorkerFleet};

use crate::steps;

/// How `plan` names it.
const FOUND: &str = "validatingwebhookconfiguration/silent";
/// A webhook without a server. An API server that starts would ask it, and end.
const SILENT: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: silent}
webhooks:
- name: roles.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig: {service: {namespace: default, name: nobody}}
  rules:
  - {apiGroups: [rbac.authorization.k8s.io], apiVersions: ['*'], operations: [CREATE, UPDATE], resources: [clusterroles]}
";

/// While there is such a webhook, no component is upgraded, and the plan names it.
pub(crate) fn finds_a_silent_webhook(worker_fleet: &WorkerFleet, cluster: &TestCluster, to: Release) {
    cluster.kubectl.apply(SILENT);
    worker_fleet.write(&["cluster", "upgrade", "--name", "c1", "--to", &to.to_string()]);
    let before = releases(worker_fleet);
    assert!(steps::plan(worker_fleet).contains(FOUND), "{}", steps::plan(worker_fleet));
    let ended = worker_fleet.keelway(&["reconcile", "--once"]);
    worker_fleet.replace_documents(ended.stdout);
    assert_eq!(releases(worker_fleet), before);
    let _ = cluster.kubectl.run(&["delete", "validatingwebhookconfiguration", "silent"]).succeeded();
    assert!(!steps::plan(worker_fleet).contains(FOUND));
}

/// Returns the release of each component.
fn releases(worker_fleet: &WorkerFleet) -> Vec<(String, String)> {
    let documents = worker_fleet.documents();
    let of = |component: &Component| (component.spec.name().unwrap().to_string(), component.spec.version.clone());
    documents.components.values().map(|component| of(component)).collect()
}
