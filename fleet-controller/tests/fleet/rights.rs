//! An agent tries each verb on what is not its own.

use http::Request;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use keelway_fleet::names::AGENTS_GROUP;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use crate::agents::TestAgent;

/// A collection of objects that an agent has no right to, and what creates one there.
const COLLECTIONS: [(&str, &str, &str); 12] = [
    ("/apis/fleet.keelway.dev/v1alpha1/namespaces/fleet-north/works", "fleet.keelway.dev/v1alpha1", "Work"),
    ("/apis/fleet.keelway.dev/v1alpha1/works", "fleet.keelway.dev/v1alpha1", "Work"),
    ("/apis/coordination.k8s.io/v1/namespaces/fleet-north/leases", "coordination.k8s.io/v1", "Lease"),
    ("/apis/fleet.keelway.dev/v1alpha1/clusters", "fleet.keelway.dev/v1alpha1", "Cluster"),
    ("/apis/fleet.keelway.dev/v1alpha1/schedulepolicies", "fleet.keelway.dev/v1alpha1", "SchedulePolicy"),
    ("/apis/fleet.keelway.dev/v1alpha1/namespaces/default/placements", "fleet.keelway.dev/v1alpha1", "Placement"),
    ("/api/v1/namespaces/default/secrets", "v1", "Secret"),
    ("/api/v1/namespaces/kube-system/secrets", "v1", "Secret"),
    ("/api/v1/namespaces/kube-system/configmaps", "v1", "ConfigMap"),
    ("/api/v1/namespaces/fleet-west/secrets", "v1", "Secret"),
    ("/apis/apps/v1/namespaces/default/deployments", "apps/v1", "Deployment"),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
];
/// Objects of others, one by one.
const OBJECTS: [&str; 4] = [
    "/apis/fleet.keelway.dev/v1alpha1/clusters/north",
    "/apis/fleet.keelway.dev/v1alpha1/clusters/north/status",
    "/apis/fleet.keelway.dev/v1alpha1/namespaces/fleet-north/works/a/status",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval",
];

async fn status(client: &Client, method: &str, path: &str, body: Option<&Value>) -> u16 {
    let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = body.map(|body| serde_json::to_vec(body).unwrap()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("Content-Type", content).body(body).unwrap();
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// Tries every verb on everything, and returns what was not refused. Nothing that is tried exists, so that nothing is changed.
async fn allowed(client: &Client) -> Vec<String> {
    let mut allowed = Vec::new();
    let mut attempt = async |method: &str, path: String, body: Option<Value>| {
        let code = status(client, method, &path, body.as_ref()).await;
        if code != 403 {
            allowed.push(format!("{method} {path}: {code}"));
        }
    };
    for (path, api_version, kind) in COLLECTIONS {
        // An object without a name is refused as invalid to those who may create it.
        let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": {} });
        attempt("GET", path.to_owned(), None).await;
        attempt("GET", format!("{path}?watch=1&timeoutSeconds=1"), None).await;
        attempt("POST", path.to_owned(), Some(object.clone())).await;
        if path.ends_with("/v1alpha1/works") {
            continue;
        }
        attempt("DELETE", format!("{path}?labelSelector=none%3Dnone"), None).await;
        attempt("GET", format!("{path}/nothing"), None).await;
        attempt("PUT", format!("{path}/nothing"), Some(object)).await;
        attempt("PATCH", format!("{path}/nothing"), Some(json!({}))).await;
        attempt("DELETE", format!("{path}/nothing"), None).await;
    }
    for path in OBJECTS {
        attempt("GET", path.to_owned(), None).await;
        attempt("PATCH", path.to_owned(), Some(json!({}))).await;
    }
    allowed
}

/// The rights of an agent end at its own namespace, its own Lease and the status of its own Cluster.
pub(crate) async fn an_agent_has_only_its_own(west: &TestAgent, admin: &Client) {
    let own = [
        ("GET", "/apis/fleet.keelway.dev/v1alpha1/namespaces/fleet-west/works"),
        ("GET", "/apis/fleet.keelway.dev/v1alpha1/clusters/west"),
        ("GET", "/apis/fleet.keelway.dev/v1alpha1/clusters?fieldSelector=metadata.name%3Dwest"),
        ("PATCH", "/apis/fleet.keelway.dev/v1alpha1/clusters/west/status"),
    ];
    for (method, path) in own {
        assert_eq!(status(&west.client, method, path, Some(&json!({}))).await, 200, "{method} {path}");
    }
    assert_eq!(allowed(&west.client).await, Vec::<String>::new());
    let spec = json!({ "spec": { "region": "elsewhere" } });
    let path = "/apis/fleet.keelway.dev/v1alpha1/clusters/west";
    assert_eq!(status(&west.client, "PATCH", path, Some(&spec)).await, 403, "an agent does not choose its labels");
    assert_eq!(status(admin, "GET", "/apis/fleet.keelway.dev/v1alpha1/clusters/north", None).await, 200);
}

/// The same attempts succeed if rights are bound to the group of all agents.
pub(crate) async fn without_guards(agent: &TestAgent, admin: &Client) {
    let all: ClusterRole = serde_json::from_value(json!({
        "metadata": { "name": "all" },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "all" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": AGENTS_GROUP }],
    }))
    .unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &all).await.unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let attempts = COLLECTIONS.len() * 8 - 5 + OBJECTS.len() * 2;
    crate::wait::until("every attempt is allowed", async || allowed(&agent.client).await.len() == attempts).await;
}
