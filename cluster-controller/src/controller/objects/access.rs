//! Permissions of workers and of join tokens, in addition to those of Kubernetes' node authorizer.

use keelway_api::worker::{BOOTSTRAPPERS, INFORMATION, REGISTRIES};
use serde_json::{Value, json};

use super::{super::csr::NODES, information::CNI};

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn objects() -> Vec<Value> {
    let all = [NODES, BOOTSTRAPPERS];
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": "keelway:node" },
            "rules": [
                // The policy `keelway-own-peer` limits a node to its own peer. Only the cluster-controller writes its status.
                {
                    "apiGroups": ["keelway.dev"],
                    "resources": ["wireguardpeers"],
                    "verbs": ["get", "list", "watch", "create", "delete"],
                },
            ],
        }),
        cluster_binding("keelway:node", "keelway:node", NODES),
        cluster_binding("keelway:bootstrappers", "system:node-bootstrapper", BOOTSTRAPPERS),
        role("kube-system", "keelway:worker-information", "configmaps", &[INFORMATION, CNI]),
        binding("kube-system", "keelway:worker-information", &all),
        role("kube-public", "keelway:cluster-info", "configmaps", &["cluster-info"]),
        binding("kube-public", "keelway:cluster-info", &all),
        role(REGISTRIES.0, "keelway:registries", "secrets", &[REGISTRIES.1]),
        binding(REGISTRIES.0, "keelway:registries", &all),
    ]
}

fn cluster_binding(name: &str, role: &str, group: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": RBAC, "kind": "Group", "name": group }],
    })
}

fn role(namespace: &str, name: &str, resource: &str, objects: &[&str]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": { "name": name, "namespace": namespace },
        "rules": [{
            "apiGroups": [""],
            "resources": [resource],
            "resourceNames": objects,
            "verbs": ["get", "list", "watch"],
        }],
    })
}

fn binding(namespace: &str, role: &str, groups: &[&str]) -> Value {
    let subjects: Vec<Value> =
        groups.iter().map(|group| json!({ "apiGroup": RBAC, "kind": "Group", "name": group })).collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": role, "namespace": namespace },
        "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": role },
        "subjects": subjects,
    })
}
