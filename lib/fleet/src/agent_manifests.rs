//! What a workload cluster needs for its agent, as plain manifests. The chart `keelway-fleet-agent` renders the same objects.

use keelway_api::machine::sha256_hex;
use serde_json::{Value, json};

use crate::names::{AGENT_SECRET, FLEET_NAMESPACE, TOKEN_SECRET};

/// The name of the agent's objects in the workload cluster.
const NAME: &str = "keelway-fleet-agent";
/// What the agent may do with the kinds that the fleet places.
const VERBS: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
/// What it may do with them if another orchestrator submits the objects.
const READ_VERBS: [&str; 3] = ["get", "list", "watch"];
/// The user and group of the agent's container. It needs no privileges.
const USER: u32 = 65532;
/// The port of health and metrics.
const HEALTH: u16 = 8080;
/// The annotation of the agent's pod with the digest of its token. Another token replaces the pod, because the agent reads it once.
const TOKEN_DIGEST: &str = "fleet.keelway.dev/token-digest";

/// The kinds that a fleet places without being asked, by group and resource.
pub const PLACED_RESOURCES: [(&str, &[&str]); 8] = [
    ("", &["configmaps", "namespaces", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"]),
    ("apps", &["daemonsets", "deployments", "replicasets", "statefulsets"]),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("networking.k8s.io", &["ingressclasses", "ingresses", "networkpolicies"]),
    ("scheduling.k8s.io", &["priorityclasses"]),
    ("resource.k8s.io", &["resourceclaims", "resourceclaimtemplates"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
];
/// The kinds that grant rights.
const RBAC_RESOURCES: (&str, &[&str]) =
    ("rbac.authorization.k8s.io", &["clusterrolebindings", "clusterroles", "rolebindings", "roles"]);
/// The kinds that intercept requests of others.
const WEBHOOK_RESOURCES: (&str, &[&str]) =
    ("admissionregistration.k8s.io", &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]);

/// What the agent may do beyond [`PLACED_RESOURCES`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct AgentRights {
    /// Whether the fleet places roles and their bindings. Kubernetes lets the agent grant only rights that it has itself.
    pub rbac: bool,
    /// Whether the fleet places configurations of webhooks.
    pub webhooks: bool,
    /// Custom resources that the fleet places, each as `PLURAL.GROUP`.
    pub resources: Vec<String>,
    /// Whether another orchestrator submits the objects (`--orchestration-enabled=false`). Then the agent only reads.
    pub delegated: bool,
    /// Whether failover moves nothing away from the cluster (`--rescheduling-enabled=false`).
    pub pinned: bool,
}

/// Returns the manifests of the agent: apply them in the workload cluster. `token` is the text of its fleet token.
#[must_use]
pub fn agent_manifests(token: &str, image: &str, rights: &AgentRights) -> Vec<Value> {
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": FLEET_NAMESPACE } }),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": own(TOKEN_SECRET),
            "stringData": { "token": token },
        }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": own(NAME) }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": of_cluster(),
            "rules": agent_rules(rights),
        }),
        binding("ClusterRoleBinding", "ClusterRole", &of_cluster()),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": own(NAME),
            "rules": [
                { "apiGroups": [""], "resources": ["secrets"], "resourceNames": [AGENT_SECRET], "verbs": ["get", "patch"] },
                { "apiGroups": [""], "resources": ["secrets"], "verbs": ["create"] },
            ],
        }),
        binding("RoleBinding", "Role", &own(NAME)),
        deployment(image, &sha256_hex(token.trim().as_bytes()), rights),
    ]
}

/// Returns the rules of the agent's `ClusterRole`: named kinds, never all.
#[must_use]
pub fn agent_rules(rights: &AgentRights) -> Vec<Value> {
    let verbs = if rights.delegated { &READ_VERBS[..] } else { &VERBS };
    let placed = PLACED_RESOURCES.into_iter();
    let asked = [(rights.rbac, RBAC_RESOURCES), (rights.webhooks, WEBHOOK_RESOURCES)];
    let asked = asked.into_iter().filter_map(|(is_asked, resources)| is_asked.then_some(resources));
    let builtin = placed
        .chain(asked)
        .map(|(group, resources)| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs }));
    let custom = rights
        .resources
        .iter()
        .filter_map(|resource| resource.split_once('.'))
        .map(|(plural, group)| json!({ "apiGroups": [group], "resources": [plural], "verbs": verbs }));
    let nodes = json!({ "apiGroups": [""], "resources": ["nodes"], "verbs": READ_VERBS });
    builtin.chain(custom).chain([nodes]).collect()
}

fn own(name: &str) -> Value {
    json!({ "name": name, "namespace": FLEET_NAMESPACE, "labels": labels() })
}

fn of_cluster() -> Value {
    json!({ "name": NAME, "labels": labels() })
}

fn labels() -> Value {
    json!({ "app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "keelway" })
}

fn binding(kind: &str, role: &str, metadata: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": FLEET_NAMESPACE }],
    })
}

/// One replica: a second one would do the same work. The directory of applied Works outlives the container.
fn deployment(image: &str, token_digest: &str, rights: &AgentRights) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": own(NAME),
        "spec": {
            "replicas": 1,
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": { "app.kubernetes.io/name": NAME } },
            "template": {
                "metadata": { "labels": labels(), "annotations": { TOKEN_DIGEST: token_digest } },
                "spec": pod(image, rights),
            },
        },
    })
}

fn pod(image: &str, rights: &AgentRights) -> Value {
    let mut arguments = vec![
        "run".to_owned(),
        "--token=/etc/keelway-fleet/token".to_owned(),
        "--state=/var/lib/keelway-fleet-agent/works".to_owned(),
        format!("--health=:{HEALTH}"),
    ];
    arguments.extend(rights.delegated.then(|| "--orchestration-enabled=false".to_owned()));
    arguments.extend(rights.pinned.then(|| "--rescheduling-enabled=false".to_owned()));
    json!({
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [{
            "name": "agent",
            "image": image,
            "args": arguments,
            "env": [
                { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                { "name": "RUST_LOG", "value": "info" },
            ],
            "ports": [{ "name": "http", "containerPort": HEALTH }],
            "livenessProbe": { "httpGet": { "path": "/healthz", "port": "http" }, "periodSeconds": 10, "failureThreshold": 6 },
            "readinessProbe": { "httpGet": { "path": "/readyz", "port": "http" }, "periodSeconds": 5 },
            "resources": { "requests": { "cpu": "10m", "memory": "24Mi" }, "limits": { "memory": "256Mi" } },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
            "volumeMounts": [
                { "name": "token", "mountPath": "/etc/keelway-fleet", "readOnly": true },
                { "name": "state", "mountPath": "/var/lib/keelway-fleet-agent" },
            ],
        }],
        "volumes": [
            { "name": "token", "secret": { "secretName": TOKEN_SECRET, "defaultMode": 0o440 } },
            { "name": "state", "emptyDir": {} },
        ],
    })
}
