//! An agent, and the controller, try each verb on what is not their own.

use futures::{StreamExt, stream};
use http::Request;
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    apps::v1::Deployment,
    core::v1::Namespace,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use keelway_fleet::names::{AGENTS_GROUP, CONTROLLER_USER, works_namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{agents::TestAgent, plane::Plane, wait};

/// How many requests are sent at once: each watch that is allowed takes a second.
const AT_ONCE: usize = 64;
const FLEET: &str = "fleet.keelway.dev/v1alpha1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Kinds that are in namespaces: group with version, kind and plural.
const NAMESPACED: [(&str, &str, &str); 12] = [
    (FLEET, "Work", "works"),
    (FLEET, "Placement", "placements"),
    ("coordination.k8s.io/v1", "Lease", "leases"),
    ("events.k8s.io/v1", "Event", "events"),
    ("v1", "Secret", "secrets"),
    ("v1", "ConfigMap", "configmaps"),
    ("v1", "Service", "services"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("apps/v1", "Deployment", "deployments"),
    ("batch/v1", "Job", "jobs"),
    (RBAC, "Role", "roles"),
    (RBAC, "RoleBinding", "rolebindings"),
];
/// Kinds that are in no namespace.
const CLUSTER_WIDE: [(&str, &str, &str); 9] = [
    (FLEET, "Cluster", "clusters"),
    (FLEET, "SchedulePolicy", "schedulepolicies"),
    ("v1", "Namespace", "namespaces"),
    ("v1", "Node", "nodes"),
    (RBAC, "ClusterRole", "clusterroles"),
    (RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests"),
];
/// Subresources of one object, in the namespace `default` where they have one.
const SUBRESOURCES: [&str; 7] = [
    "/apis/fleet.keelway.dev/v1alpha1/clusters/nothing/status",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests/nothing/approval",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests/nothing/status",
    "/apis/apps/v1/namespaces/default/deployments/nothing/scale",
    "/apis/apps/v1/namespaces/default/deployments/nothing/status",
    "/api/v1/namespaces/default/pods/nothing/ephemeralcontainers",
    "/api/v1/namespaces/nothing/finalize",
];

/// A Deployment that exists. In a dry run, nothing changes if a request is allowed.
const GUARDED: &str = "/apis/apps/v1/namespaces/default/deployments/guarded?dryRun=All";

/// A request that has to be refused. What it names does not exist, so that it changes nothing if it is allowed.
#[derive(Debug, Clone)]
struct RightsAttempt {
    verb: &'static str,
    method: &'static str,
    path: String,
    body: Option<Value>,
    impersonates: Option<&'static str>,
}

impl RightsAttempt {
    fn new(verb: &'static str, method: &'static str, path: String, body: Option<Value>) -> Self {
        Self { verb, method, path, body, impersonates: None }
    }

    /// Returns the status code of the response.
    async fn status(&self, client: &Client) -> u16 {
        let content = if self.method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = self.body.as_ref().map(|body| serde_json::to_vec(body).unwrap()).unwrap_or_default();
        let mut request = Request::builder().method(self.method).uri(&self.path).header("Content-Type", content);
        if let Some(user) = self.impersonates {
            request = request.header("Impersonate-User", user);
        }
        match client.request_text(request.body(body).unwrap()).await {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{self:?}: {error}"),
        }
    }
}

fn prefix(api_version: &str) -> String {
    if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
}

/// Returns each verb on a collection, and on an object of it that does not exist.
fn verbs(collection: &str, api_version: &str, kind: &str, name: &str) -> Vec<RightsAttempt> {
    // An object without a name is refused as invalid to those who may create it.
    let object = || Some(json!({ "apiVersion": api_version, "kind": kind, "metadata": {} }));
    let one = format!("{collection}/{name}");
    vec![
        RightsAttempt::new("list", "GET", collection.to_owned(), None),
        RightsAttempt::new("watch", "GET", format!("{collection}?watch=1&timeoutSeconds=1"), None),
        RightsAttempt::new("create", "POST", collection.to_owned(), object()),
        RightsAttempt::new("deletecollection", "DELETE", format!("{collection}?labelSelector=none%3Dnone"), None),
        RightsAttempt::new("get", "GET", one.clone(), None),
        RightsAttempt::new("update", "PUT", one.clone(), object()),
        RightsAttempt::new("patch", "PATCH", one.clone(), Some(json!({}))),
        RightsAttempt::new("delete", "DELETE", one, None),
    ]
}

/// Whether the agent of a cluster may do this with a kind in its own namespace, by an object's name that is not special.
fn is_own(plural: &str, verb: &str) -> bool {
    match plural {
        "works" => matches!(verb, "get" | "list" | "watch" | "update" | "patch"),
        "events" => matches!(verb, "create" | "patch"),
        _ => false,
    }
}

/// Returns every verb on every kind in every namespace, except those that the agent of `cluster` needs.
fn attempts_of_an_agent(cluster: &str, namespaces: &[String]) -> Vec<RightsAttempt> {
    let mut attempts = Vec::new();
    let own = works_namespace(cluster);
    for namespace in namespaces {
        for (api_version, kind, plural) in NAMESPACED {
            let collection = format!("{}/namespaces/{namespace}/{plural}", prefix(api_version));
            let all = verbs(&collection, api_version, kind, "nothing");
            attempts.extend(all.into_iter().filter(|attempt| *namespace != own || !is_own(plural, attempt.verb)));
        }
        if *namespace != own {
            let status = format!("{}/namespaces/{namespace}/works/nothing/status", prefix(FLEET));
            attempts.push(RightsAttempt::new("get", "GET", status.clone(), None));
            attempts.push(RightsAttempt::new("patch", "PATCH", status, Some(json!({}))));
            let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/agent");
            // A patch with a wrong uid changes no Lease.
            let other = json!({ "metadata": { "uid": "another" } });
            attempts.push(RightsAttempt::new("get", "GET", lease.clone(), None));
            attempts.push(RightsAttempt::new("patch", "PATCH", lease, Some(other)));
        }
        let token = format!("/api/v1/namespaces/{namespace}/serviceaccounts/nothing/token");
        attempts.push(RightsAttempt::new("create", "POST", token, Some(json!({ "spec": {} }))));
    }
    for (api_version, _, plural) in NAMESPACED {
        let everywhere = format!("{}/{plural}", prefix(api_version));
        attempts.push(RightsAttempt::new("list", "GET", everywhere.clone(), None));
        attempts.push(RightsAttempt::new("watch", "GET", format!("{everywhere}?watch=1&timeoutSeconds=1"), None));
    }
    for (api_version, kind, plural) in CLUSTER_WIDE {
        let all = verbs(&format!("{}/{plural}", prefix(api_version)), api_version, kind, "nothing");
        let is_request = plural == "certificatesigningrequests";
        let asks = |verb: &str| is_request && matches!(verb, "get" | "list" | "watch" | "create");
        attempts.extend(all.into_iter().filter(|attempt| !asks(attempt.verb)));
    }
    for path in SUBRESOURCES {
        attempts.push(RightsAttempt::new("patch", "PATCH", path.to_owned(), Some(json!({}))));
    }
    let as_another = |user| RightsAttempt {
        impersonates: Some(user),
        ..RightsAttempt::new("impersonate", "GET", "/api".to_owned(), None)
    };
    attempts.extend(["admin", CONTROLLER_USER].map(as_another));
    attempts
}

/// Returns writes of the controller that it does not need.
fn attempts_of_the_controller() -> Vec<RightsAttempt> {
    let is_write = |attempt: &RightsAttempt| !matches!(attempt.verb, "get" | "list" | "watch");
    let users = [("v1", "Secret", "secrets"), ("v1", "ConfigMap", "configmaps"), ("v1", "Service", "services")];
    let users = users.into_iter().chain([("apps/v1", "Deployment", "deployments"), (RBAC, "Role", "roles")]);
    let mut attempts: Vec<RightsAttempt> = users
        .flat_map(|(api_version, kind, plural)| {
            let collection = format!("{}/namespaces/default/{plural}", prefix(api_version));
            verbs(&collection, api_version, kind, "nothing")
        })
        .chain(verbs(&format!("{}/schedulepolicies", prefix(FLEET)), FLEET, "SchedulePolicy", "nothing"))
        .chain(verbs("/api/v1/nodes", "v1", "Node", "nothing"))
        .filter(is_write)
        // A policy limits what it patches of workloads.
        .filter(|attempt| attempt.verb != "patch" || !attempt.path.contains("/deployments/"))
        .collect();
    let token = "/api/v1/namespaces/default/serviceaccounts/nothing/token".to_owned();
    attempts.push(RightsAttempt::new("create", "POST", token, Some(json!({ "spec": {} }))));
    // Rights that it does not have itself. A dry run changes nothing if it is allowed.
    let role = json!({
        "apiVersion": RBAC,
        "kind": "ClusterRole",
        "metadata": { "name": "more" },
        "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["update"] }],
    });
    let binding = json!({
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": { "name": "more" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": CONTROLLER_USER }],
    });
    for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("{}/{plural}?dryRun=All", prefix(RBAC));
        attempts.push(RightsAttempt::new("escalate", "POST", path, Some(object)));
    }
    let as_another = |user| RightsAttempt {
        impersonates: Some(user),
        ..RightsAttempt::new("impersonate", "GET", "/api".to_owned(), None)
    };
    attempts.extend(["admin", "system:admin"].map(as_another));
    attempts
}

/// Makes all attempts, and returns those that were not refused.
async fn allowed(client: &Client, attempts: &[RightsAttempt]) -> Vec<String> {
    let tried = stream::iter(attempts).map(async |attempt| (attempt, attempt.status(client).await));
    let tried: Vec<_> = tried.buffer_unordered(AT_ONCE).collect().await;
    let kept = tried.into_iter().filter(|(_, code)| *code != 403);
    kept.map(|(attempt, code)| format!("{} {} {}: {code}", attempt.verb, attempt.method, attempt.path)).collect()
}

/// Returns the namespaces. In one that is being deleted, nobody may create anything.
async fn namespaces(admin: &Client) -> Vec<String> {
    let listed = Api::<Namespace>::all(admin.clone()).list(&ListParams::default()).await.unwrap();
    let kept = listed.iter().filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
    kept.map(ResourceExt::name_any).collect()
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
        let attempt = RightsAttempt::new("own", method, path.to_owned(), Some(json!({})));
        assert_eq!(attempt.status(&west.client).await, 200, "{method} {path}");
    }
    let attempts = attempts_of_an_agent(&west.cluster, &namespaces(admin).await);
    assert_eq!(allowed(&west.client, &attempts).await, Vec::<String>::new());
    println!("{} attempts of an agent were refused", attempts.len());
    let path = "/apis/fleet.keelway.dev/v1alpha1/clusters/west";
    for (method, body) in [("PATCH", json!({ "spec": { "region": "elsewhere" } })), ("DELETE", json!({}))] {
        let attempt = RightsAttempt::new("own", method, path.to_owned(), Some(body));
        assert_eq!(attempt.status(&west.client).await, 403, "an agent does not choose its labels, and does not leave");
    }
}

/// The controller reads everything, and writes only what it places and reports.
pub(crate) async fn the_controller_writes_only_its_own(plane: &Plane) {
    let client = plane.client(CONTROLLER_USER, &[]).await;
    let read = RightsAttempt::new("list", "GET", "/api/v1/secrets".to_owned(), None);
    assert_eq!(read.status(&client).await, 200, "it places Secrets");
    assert_eq!(allowed(&client, &attempts_of_the_controller()).await, Vec::<String>::new());
}

/// What the controller tries with a Deployment. Only its label may change.
fn attempts_on_a_workload() -> Vec<RightsAttempt> {
    let changes = [
        json!({ "spec": { "replicas": 9 } }),
        json!({ "spec": { "template": { "spec": { "serviceAccountName": "other" } } } }),
        json!({ "metadata": { "labels": { "team": "other" } } }),
        json!({ "metadata": { "labels": { "app": null } } }),
        json!({ "metadata": { "annotations": { "fleet.keelway.dev/cluster": "west" } } }),
        json!({ "metadata": { "finalizers": ["example.com/never"] } }),
        json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1" }] } }),
    ];
    changes.into_iter().map(|change| RightsAttempt::new("patch", "PATCH", GUARDED.to_owned(), Some(change))).collect()
}

/// Creates the Deployment that the attempts are about.
async fn create_guarded(admin: &Client) -> Api<Deployment> {
    let guarded: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "guarded", "labels": { "app": "guarded" } },
        "spec": {
            "selector": { "matchLabels": { "app": "guarded" } },
            "template": {
                "metadata": { "labels": { "app": "guarded" } },
                "spec": { "containers": [{ "name": "c", "image": "example.com/c" }] },
            },
        },
    }))
    .unwrap();
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    deployments.create(&PostParams::default(), &guarded).await.unwrap();
    deployments
}

/// The controller may patch workloads, and a policy limits that to the label that names a cluster.
pub(crate) async fn the_controller_changes_one_label(plane: &Plane, admin: &Client) {
    let deployments = create_guarded(admin).await;
    let client = plane.client(CONTROLLER_USER, &[]).await;
    let attempts = attempts_on_a_workload();
    // API servers observe a new policy within a moment.
    wait::until("the policy is in force", async || allowed(&client, &attempts).await.is_empty()).await;
    assert_eq!(allowed(&client, &attempts).await, Vec::<String>::new());
    for label in [json!("west"), json!("east"), Value::Null] {
        let change = json!({ "metadata": { "labels": { "fleet.keelway.dev/target-cluster": label } } });
        let attempt = RightsAttempt::new("patch", "PATCH", GUARDED.to_owned(), Some(change));
        assert_eq!(attempt.status(&client).await, 200, "{label}");
    }
    deployments.delete("guarded", &DeleteParams::default()).await.unwrap();
}

/// Without the policy, nothing limits what the controller patches of workloads.
pub(crate) async fn without_the_policy(plane: &Plane, admin: &Client) {
    create_guarded(admin).await;
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone());
    bindings.delete("keelway-fleet-target-label", &DeleteParams::default()).await.unwrap();
    let client = plane.client(CONTROLLER_USER, &[]).await;
    let attempts = attempts_on_a_workload();
    wait::until("every change is allowed", async || allowed(&client, &attempts).await.len() == attempts.len()).await;
}

/// The same attempts are not refused if all rights are bound to the group of all agents, and to the controller.
pub(crate) async fn without_guards(plane: &Plane, agent: &TestAgent, admin: &Client) {
    let all: ClusterRole = serde_json::from_value(json!({
        "metadata": { "name": "all" },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "all" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all" },
        "subjects": [
            { "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": AGENTS_GROUP },
            { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": CONTROLLER_USER },
        ],
    }))
    .unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &all).await.unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let controller = plane.client(CONTROLLER_USER, &[]).await;
    let of_agent = attempts_of_an_agent(&agent.cluster, &namespaces(admin).await);
    for (client, attempts) in [(&agent.client, of_agent), (&controller, attempts_of_the_controller())] {
        let refused = std::cell::Cell::new(usize::MAX);
        wait::until("no attempt is refused", async || {
            let now = attempts.len() - allowed(client, &attempts).await.len();
            if refused.replace(now) != now {
                println!("            {now} of {} attempts are refused", attempts.len());
            }
            now == 0
        })
        .await;
    }
}
