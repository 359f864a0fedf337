//! What a pass applies in a managed cluster or fleet once its API serves: rights, and the kinds of workers.

use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use keelway_api::{
    Documents,
    cluster::ClusterSpec,
    crd::{WORKER_CRDS_DIGEST, worker_crds},
    machine::sha256_hex,
    name::ClusterId,
    worker,
};
use keelway_fleet::{
    FLEET_CONTROLLER_ROLE, fleet_controller_role,
    names::{AGENT_LEASE, GROUP},
};
use serde_json::{Value, json};

use crate::{
    access::{ADMIN_GROUP, BINDINGS_DIGEST, OWNER},
    secret_names::{DRIVER, GATEWAY, KUBELET_CLIENT},
};

/// The API groups of RBAC and of Keelway's own kinds.
const RBAC: &str = "rbac.authorization.k8s.io";
const OWN: &str = "keelway.dev";

/// The policy that limits what the driver may do with Secrets.
const ONLY_TOKENS: &str = "keelway-driver-tokens";
/// The policy that limits what the cluster-controller may change on Nodes.
const ONLY_KUBELET_ORDERS: &str = "keelway-kubelet-orders";

/// The first bindings of a managed API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstBindings {
    /// Of a cluster with workers.
    Cluster,
    /// Of a fleet. It has no workers, so neither gateways nor drivers have rights about them.
    Fleet,
}

impl FirstBindings {
    /// Returns those of a cluster with this spec.
    #[must_use]
    pub fn of(spec: &ClusterSpec) -> Self {
        if spec.is_fleet() { Self::Fleet } else { Self::Cluster }
    }

    /// Returns those of the cluster with this id. A cluster without a document has no API that a pass could reach.
    #[must_use]
    pub fn of_id(documents: &Documents, id: &ClusterId) -> Self {
        let cluster = documents.clusters.values().find(|cluster| cluster.id() == Some(id));
        cluster.map_or(Self::Cluster, |cluster| Self::of(&cluster.spec))
    }

    /// Returns a digest of everything in [`FirstBindings::stages`].
    #[must_use]
    pub fn digest(self) -> String {
        let own = Value::from(self.own_access()).to_string();
        let rest = match self {
            Self::Cluster => [worker::CLUSTER_CONTROLLER_ROLE, WORKER_CRDS_DIGEST],
            Self::Fleet => [FLEET_CONTROLLER_ROLE, ""],
        };
        sha256_hex([own.as_str(), rest[0], rest[1]].concat().as_bytes())
    }

    /// Returns what a pass applies with server-side apply, in stages. Each stage relies on the stages before it. The last stage carries
    /// [`BINDINGS_DIGEST`], which shows that all stages are applied.
    ///
    /// The kinds of workers are included, so that gateways have something to watch if no cluster-controller runs, which otherwise maintains them.
    /// They are applied in its name: the field manager of an object is its label [`worker::MANAGED_BY`]. A fleet-controller applies its kinds itself,
    /// because only it reads them.
    #[must_use]
    pub fn stages(self) -> [Vec<Value>; 3] {
        let mut rights = self.own_access();
        rights.extend(match self {
            Self::Cluster => worker::cluster_controller_role(),
            Self::Fleet => fleet_controller_role(),
        });
        let digest = self.digest();
        for object in &mut rights {
            annotate(object, &digest);
        }
        let (last, others) = rights.into_iter().partition(|object| {
            object.get("kind").and_then(Value::as_str) == Some("ClusterRoleBinding")
                && object.pointer("/metadata/name").and_then(Value::as_str) == Some(DRIVER)
        });
        // API servers create these by themselves a moment after they are ready.
        let namespaces = ["default", "kube-public", "kube-system"];
        let namespace = |name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let kinds = match self {
            Self::Cluster => worker_crds(),
            Self::Fleet => Vec::new(),
        };
        let kinds = kinds.into_iter().filter_map(|kind| serde_json::to_value(kind).ok());
        let first = namespaces.into_iter().map(namespace).chain(kinds).collect();
        [first, others, last]
    }

    /// The rights of administrators and the driver, and of API servers and gateways in clusters with workers.
    fn own_access(self) -> Vec<Value> {
        match self {
            Self::Cluster => access_to_cluster(),
            Self::Fleet => vec![
                role("ClusterRole", DRIVER, None, &[own_rights_in_fleet(), checks_before_upgrade()].concat().into()),
                binding(ADMIN_GROUP, "cluster-admin", "Group", ADMIN_GROUP),
                binding(DRIVER, DRIVER, "User", DRIVER),
            ],
        }
    }
}

fn annotate(object: &mut Value, digest: &str) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("annotations".to_string(), json!({ BINDINGS_DIGEST: digest }));
        metadata.insert("labels".to_string(), json!({ worker::MANAGED_BY: OWNER }));
    }
}

/// The right of the driver to see whether the first bindings are applied.
fn own_binding() -> Value {
    rule(RBAC, &["clusterrolebindings"], &["get"], &[DRIVER])
}

fn own_rights_in_fleet() -> Vec<Value> {
    vec![
        own_binding(),
        // Agents report on their Leases which authorities they trust.
        rule("coordination.k8s.io", &["leases"], &["list"], &[AGENT_LEASE]),
        rule(GROUP, &["clusters"], &["list"], &[]),
    ]
}

/// The rights of the driver to check a cluster before its upgrade to another minor version.
fn checks_before_upgrade() -> Vec<Value> {
    vec![
        // Which deprecated APIs clients request.
        json!({ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }),
        // Which webhooks do not respond.
        rule(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            &["list"],
            &[],
        ),
        rule("discovery.k8s.io", &["endpointslices"], &["list"], &[]),
    ]
}

/// The rights of administrators, API servers, gateways and the driver.
fn access_to_cluster() -> Vec<Value> {
    let own = vec![
        own_binding(),
        // Evicted workers, and what is recorded about them.
        rule(OWN, &["tombstones"], &["get", "list", "create"], &[]),
        rule(OWN, &["wireguardpeers"], &["get", "list", "delete"], &[]),
        // With which token a worker joined, and whether it has no peer.
        rule(OWN, &["workeridentities"], &["get", "list"], &[]),
        rule("", &["nodes"], &["get", "list", "delete"], &[]),
    ];
    let driver = [own, checks_before_upgrade()].concat().into();
    // Bootstrap tokens have no kind of their own, and their names are not known beforehand. A policy limits which Secrets the driver
    // creates and deletes. Reads cannot be limited.
    let tokens = json!([rule("", &["secrets"], &["get", "list", "create", "delete"], &[])]);
    let gateway = json!([
        rule(OWN, &["wireguardpeers"], &["get", "list", "watch"], &[]),
        // Of workers that prove the key of an expired certificate. The cluster-controller decides, and a policy limits what they are.
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["get", "create"], &[]),
    ]);
    vec![
        role("ClusterRole", DRIVER, None, &driver),
        role("ClusterRole", GATEWAY, None, &gateway),
        role("Role", DRIVER, Some("kube-system"), &tokens),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": { "name": DRIVER, "namespace": "kube-system" },
            "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": DRIVER },
            "subjects": [{ "apiGroup": RBAC, "kind": "User", "name": DRIVER }],
        }),
        binding(ADMIN_GROUP, "cluster-admin", "Group", ADMIN_GROUP),
        binding("keelway:kubelet-client", "system:kubelet-api-admin", "User", KUBELET_CLIENT),
        binding(GATEWAY, GATEWAY, "User", GATEWAY),
        binding(DRIVER, DRIVER, "User", DRIVER),
        only_tokens(),
        denying(ONLY_TOKENS),
        only_kubelet_orders(),
        denying(ONLY_KUBELET_ORDERS),
    ]
}

/// On Nodes, the cluster-controller changes the orders to upgrade kubelets and nothing else.
fn only_kubelet_orders() -> Value {
    let orders = [worker::KUBELET_RELEASE, worker::DRAIN_TIMEOUT].map(|key| format!("'{key}'")).join(", ");
    let annotations = |of: &str| format!("(has({of}.metadata.annotations) ? {of}.metadata.annotations : {{}})");
    let same = |of: &str, other: &str| {
        format!(
            "variables.{of}.all(key, key in [{orders}] || (key in variables.{other} && variables.{of}[key] == variables.{other}[key]))"
        )
    };
    let list = |of: &str, field: &str| format!("(has({of}.metadata.{field}) ? {of}.metadata.{field} : [])");
    let unchanged = |field: &str| format!("{} == {}", list("object", field), list("oldObject", field));
    let labels = |of: &str| format!("(has({of}.metadata.labels) ? {of}.metadata.labels : {{}})");
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": ONLY_KUBELET_ORDERS },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["UPDATE"],
                "resources": ["nodes"],
            }] },
            "matchConditions": [{
                "name": "cluster-controller",
                "expression": format!("request.userInfo.username == '{}'", worker::CLUSTER_CONTROLLER_USER),
            }],
            "variables": [
                { "name": "before", "expression": annotations("oldObject") },
                { "name": "after", "expression": annotations("object") },
            ],
            "validations": [{
                "expression": format!(
                    "object.spec == oldObject.spec && {} && {} && {} == {} && {} && {}",
                    unchanged("finalizers"),
                    unchanged("ownerReferences"),
                    labels("object"), labels("oldObject"), same("before", "after"), same("after", "before")
                ),
                "message": format!("on Nodes, {} changes {orders} only", worker::CLUSTER_CONTROLLER_USER),
            }],
        },
    })
}

/// The binding of a policy that denies.
fn denying(policy: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": policy },
        "spec": { "policyName": policy, "validationActions": ["Deny"] },
    })
}

/// Of Secrets, the driver creates and deletes bootstrap tokens and nothing else.
fn only_tokens() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": ONLY_TOKENS },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["secrets"],
            }] },
            "matchConditions": [{
                "name": "driver",
                "expression": format!("request.userInfo.username == '{DRIVER}'"),
            }],
            "variables": [{ "name": "secret", "expression": "request.operation == 'DELETE' ? oldObject : object" }],
            "validations": [{
                "expression": "has(variables.secret.type) && variables.secret.type == 'bootstrap.kubernetes.io/token' && \
                    has(variables.secret.metadata.name) && variables.secret.metadata.name.startsWith('bootstrap-token-')",
                "message": format!("of Secrets, {DRIVER} makes and deletes bootstrap tokens only"),
            }],
        },
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    let mut rule = json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    if let Some(fields) = rule.as_object_mut().filter(|_| !names.is_empty()) {
        fields.insert("resourceNames".to_string(), json!(names));
    }
    rule
}

fn role(kind: &str, name: &str, namespace: Option<&str>, rules: &Value) -> Value {
    let mut role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name },
        "rules": rules,
    });
    if let (Some(namespace), Some(metadata)) = (namespace, role.get_mut("metadata").and_then(Value::as_object_mut)) {
        metadata.insert("namespace".to_string(), json!(namespace));
    }
    role
}

fn binding(name: &str, role: &str, kind: &str, subject: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject }],
    })
}
