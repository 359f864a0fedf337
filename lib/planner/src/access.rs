//! Access to managed clusters: the driver's identity and the first bindings.

use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    Component, Documents, condition,
    crd::{WORKER_CRDS_DIGEST, worker_crds},
    documents::SecretName,
    machine::{ObservedValue, sha256_hex},
    name::{ClusterId, HypervisorName},
    role::{Role, SECURE},
    worker,
};
use serde_json::{Value, json};

use crate::{
    CertificateReference, CertificateSubject, PassObservation, WaitBlocker,
    certificate_subject::client,
    plan::Plan,
    secret_names::{API_SERVER_NAME, DRIVER, DRIVER_SECRET, GATEWAY, KUBELET_CLIENT, KUBERNETES},
    world::ValidatedDocuments,
};

/// The API groups of RBAC and of Keelway's own kinds.
const RBAC: &str = "rbac.authorization.k8s.io";
const OWN: &str = "keelway.dev";

/// The policy that limits what the driver may do with Secrets.
const ONLY_TOKENS: &str = "keelway-driver-tokens";
/// The group of administrators' kubeconfigs. RBAC binds it, so its rights can be removed, unlike those of `system:masters`.
pub const ADMIN_GROUP: &str = "keelway:cluster-admins";
/// The field manager of what a pass applies.
pub const OWNER: &str = "keelway";
/// The annotation of our bindings that contains their digest.
pub const BINDINGS_DIGEST: &str = "keelway.dev/digest";

/// How a pass reaches the API of a managed cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAccess {
    /// The machine from which to dial.
    pub machine: HypervisorName,
    /// The API server's address.
    pub address: SocketAddr,
    /// The name that its certificate must hold.
    pub server_name: &'static str,
    /// The Secret of the authority: `bundle.crt` verifies the server, and `active.key` can sign a client certificate.
    pub authority: SecretName,
}

/// Returns the access to every API server of a cluster. Those with the condition `Ready` are first, then by name.
#[must_use]
pub fn access(documents: &Documents, id: &ClusterId) -> Vec<ClusterAccess> {
    let servers = documents.components_of(id).filter(|(_, component)| component.spec.role == Role::KubeApiserver);
    let mut servers: Vec<_> = servers.collect();
    servers.sort_by_key(|(_, component)| !is_ready(component));
    servers
        .into_iter()
        .filter_map(|(_, component)| {
            let machine = documents.hypervisors.get(&component.spec.hypervisor)?;
            let address = machine.spec.addresses.private.first()?.parse().ok()?;
            Some(ClusterAccess {
                machine: component.spec.hypervisor.clone(),
                address: SocketAddr::new(address, component.spec.port(SECURE)),
                server_name: API_SERVER_NAME,
                authority: SecretName::of(id, KUBERNETES),
            })
        })
        .collect()
}

fn is_ready(component: &Component) -> bool {
    component.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
}

/// Returns the driver's identity in a cluster.
#[must_use]
pub fn driver_identity(id: &ClusterId) -> CertificateReference {
    CertificateReference { secret: SecretName::of(id, DRIVER_SECRET), name: "client" }
}

/// Returns a digest of everything in [`first_bindings`].
#[must_use]
pub fn bindings_digest() -> String {
    let own = Value::from(own_access()).to_string();
    sha256_hex([own.as_str(), worker::CLUSTER_CONTROLLER_ROLE, WORKER_CRDS_DIGEST].concat().as_bytes())
}

/// Returns what a pass applies to a cluster with server-side apply, in stages. Each stage relies on the stages before it. The last stage
/// carries [`BINDINGS_DIGEST`], which shows that all stages are applied.
///
/// The kinds of workers are included, so that gateways have something to watch if no cluster-controller runs, which otherwise maintains them.
/// They are applied in its name: the field manager of an object is its label [`worker::MANAGED_BY`].
#[must_use]
pub fn first_bindings() -> [Vec<Value>; 3] {
    let mut rights = own_access();
    rights.extend(worker::cluster_controller_role());
    let digest = bindings_digest();
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
    let kinds = worker_crds().into_iter().filter_map(|kind| serde_json::to_value(kind).ok());
    let first = namespaces.into_iter().map(namespace).chain(kinds).collect();
    [first, others, last]
}

fn annotate(object: &mut Value, digest: &str) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("annotations".to_string(), json!({ BINDINGS_DIGEST: digest }));
        metadata.insert("labels".to_string(), json!({ worker::MANAGED_BY: OWNER }));
    }
}

/// The rights of administrators, API servers, gateways and the driver.
fn own_access() -> Vec<Value> {
    let driver = json!([
        rule(RBAC, &["clusterrolebindings"], &["get"], &[DRIVER]),
        // Evicted workers, and what is recorded about them.
        rule(OWN, &["tombstones"], &["get", "list", "create"], &[]),
        rule(OWN, &["wireguardpeers"], &["get", "list", "delete"], &[]),
        // With which token a worker joined, and whether it has no peer.
        rule(OWN, &["workeridentities"], &["get", "list"], &[]),
        rule("", &["nodes"], &["get", "list", "delete"], &[]),
    ]);
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
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": ONLY_TOKENS },
            "spec": { "policyName": ONLY_TOKENS, "validationActions": ["Deny"] },
        }),
    ]
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

/// Whether an API server of the cluster is ready now.
pub(crate) fn serves(documents: &Documents, id: &ClusterId, seen: &PassObservation) -> bool {
    let mut servers = documents.components_of(id).filter(|(_, server)| server.spec.role == Role::KubeApiserver);
    servers.any(|(pod, _)| seen.healthy(pod))
}

/// Requests the first bindings if an API server is ready and reports that they are missing or differ.
pub(crate) fn plan_bindings(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation) {
    let wanted = bindings_digest();
    for (name, id, _) in world.reconciled_clusters() {
        if plan.documents.clusters.get(name).is_none_or(|cluster| cluster.deleted()) {
            continue;
        }
        match seen.bindings.get(id) {
            _ if !serves(&plan.documents, id, seen) => {}
            Some(ObservedValue::Known(digest)) if *digest == wanted => {}
            Some(ObservedValue::Known(_)) => plan.bindings.push(id.clone()),
            Some(ObservedValue::Unreachable { why, .. }) => {
                plan.wait_in_progress(name, WaitBlocker::Bindings(why.clone()));
            }
            None => plan.wait_in_progress(name, WaitBlocker::FirstBindings),
        }
    }
}

/// Returns the subject of an administrator's certificate with this name.
#[must_use]
pub fn administrator(name: &str) -> CertificateSubject {
    client(name, &[ADMIN_GROUP])
}

/// Returns the subject that applies the first bindings, before any other subject has the right to.
#[must_use]
pub fn first_administrator() -> CertificateSubject {
    client("keelway:first-bindings", &["system:masters"])
}
