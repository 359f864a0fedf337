//! What the agent of a cluster may do in the fleet, as objects.
//!
//! Rights are bound to the user of one agent, and not to the group of all agents, which may only read what every token contains. All objects belong to
//! the Cluster, so that the garbage collector deletes them with it.

use keelway_fleet::names::{CLUSTER_LABEL, GROUP, agent_user, works_namespace};
use serde_json::{Value, json};

use super::{AGENT_ROLE, REQUESTS_ROLE};

const RBAC: &str = "rbac.authorization.k8s.io";

/// A cluster whose agent gets rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessOwner<'a> {
    /// The name of the cluster.
    pub cluster: &'a str,
    /// The unique id of the Cluster.
    pub uid: &'a str,
}

/// Returns the namespace of the cluster's Works, and the rights of its agent.
#[must_use]
pub fn granted(owner: AccessOwner<'_>) -> Vec<Value> {
    let mut objects = vec![namespace(owner), own_cluster(owner)];
    objects.extend(bindings(owner, &json!([subject(owner.cluster)])));
    objects
}

/// Returns the same bindings without a subject.
#[must_use]
pub fn revoked(owner: AccessOwner<'_>) -> Vec<Value> {
    bindings(owner, &json!([])).into()
}

fn own_name(cluster: &str) -> String {
    format!("{AGENT_ROLE}:{cluster}")
}

fn subject(cluster: &str) -> Value {
    json!({ "apiGroup": RBAC, "kind": "User", "name": agent_user(cluster) })
}

fn namespace(owner: AccessOwner<'_>) -> Value {
    let metadata = metadata(owner, &works_namespace(owner.cluster), None);
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
}

/// The agent reports the status of its own Cluster. Lists and watches are limited to this name as well.
fn own_cluster(owner: AccessOwner<'_>) -> Value {
    let names = [owner.cluster];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata(owner, &own_name(owner.cluster), None),
        "rules": [
            { "apiGroups": [GROUP], "resources": ["clusters"], "resourceNames": names, "verbs": ["get", "list", "watch"] },
            { "apiGroups": [GROUP], "resources": ["clusters/status"], "resourceNames": names, "verbs": ["get", "patch", "update"] },
        ],
    })
}

fn bindings(owner: AccessOwner<'_>, subjects: &Value) -> [Value; 3] {
    let name = own_name(owner.cluster);
    let namespace = works_namespace(owner.cluster);
    let requests = format!("{name}:requests");
    [
        binding("RoleBinding", &metadata(owner, AGENT_ROLE, Some(&namespace)), AGENT_ROLE, subjects),
        binding("ClusterRoleBinding", &metadata(owner, &name, None), &name, subjects),
        binding("ClusterRoleBinding", &metadata(owner, &requests, None), REQUESTS_ROLE, subjects),
    ]
}

fn binding(kind: &str, metadata: &Value, role: &str, subjects: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": role },
        "subjects": subjects,
    })
}

fn metadata(owner: AccessOwner<'_>, name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = json!({
        "name": name,
        "labels": { CLUSTER_LABEL: owner.cluster },
        "ownerReferences": [{
            "apiVersion": format!("{GROUP}/v1alpha1"),
            "kind": "Cluster",
            "name": owner.cluster,
            "uid": owner.uid,
        }],
    });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}
