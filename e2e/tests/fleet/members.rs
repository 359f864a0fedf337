//! The members of a fleet: clusters with an agent.

use keelway_e2e::{Kubectl, worker_fleet::WorkerFleet};
use serde_json::json;

use crate::Member;

/// Allows the agents to place a custom resource as well.
pub(crate) fn may_place(members: &[&Member], resource: &str) {
    let (plural, group) = resource.split_once('.').unwrap();
    let name = "keelway-fleet-agent-visits";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
        "rules": [{ "apiGroups": [group], "resources": [plural], "verbs": ["get", "list", "watch", "create", "patch", "delete"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": "keelway-fleet-agent", "namespace": "keelway-fleet" }],
    });
    let manifests = json!({ "apiVersion": "v1", "kind": "List", "items": [role, binding] }).to_string();
    for member in members {
        let _ = member.cluster.kubectl.run_with(&["apply", "-f", "-"], manifests.as_bytes()).succeeded();
    }
}

/// The fleet lists its clusters with their release, and the status command finds nothing wrong.
pub(crate) fn are_reported(worker_fleet: &WorkerFleet, fleet: &Kubectl) {
    let table = fleet.run(&["get", "clusters.fleet.keelway.dev"]).succeeded().text().to_owned();
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "K8S-VERSION", "REGION", "ZONE", "READY", "IDLE", "STANDBY", "AGE"], "{table}");
    for (name, region) in [("west", "eu"), ("east", "us")] {
        let is_listed = |line: &str| line.starts_with(name) && line.contains("1.37") && line.contains(region);
        assert!(table.lines().any(is_listed), "{table}");
    }
    let kubeconfig = fleet.file().to_str().unwrap();
    let _ = worker_fleet.fleet.keelway.run(&["fleet", "status", "--kubeconfig", kubeconfig], &[]).succeeded();
}

/// Returns the status of the condition `Ready` of a cluster, as `kubectl get clusters` prints it.
pub(crate) fn ready(fleet: &Kubectl, member: &Member) -> String {
    let object = format!("clusters.fleet.keelway.dev/{}", member.name);
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    fleet.run(&["get", &object, "-o", path, "--request-timeout=5s"]).text().to_owned()
}
