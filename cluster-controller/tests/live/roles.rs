//! Roles that a tenant's administrator could grant to a group, and does not.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

/// Creates a role and a binding of this name that let a group do `verb` to all Secrets.
pub(crate) async fn open_secrets(admin: &Client, name: &str, verb: &str, group: &str) {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": { "name": name },
        "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": [verb] }],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group }],
    }))
    .unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &role).await.unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &binding).await.unwrap();
}
