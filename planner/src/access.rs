//! Access to the managed cluster: the pass's own identity and the first bindings.

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
    CertificateReference, CertificateSubject, PassObservation,
    certificates::{API_SERVER_NAME, DRIVER_SECRET, KUBERNETES, client},
    plan::Plan,
    world::ValidatedDocuments,
};

/// The group of rights, and that of Keelway's own kinds.
const RBAC: &str = "rbac.authorization.k8s.io";
const OWN: &str = "keelway.dev";

/// The user of the pass inside a managed cluster.
pub(crate) const DRIVER: &str = "keelway:driver";
/// The policy of what it may do about Secrets.
const ONLY_TOKENS: &str = "keelway-driver-tokens";
/// The user as which API servers ask kubelets.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// The user of gateways.
pub(crate) const GATEWAY: &str = "keelway:gateway";
/// The group of administrators' kubeconfigs. Bound by RBAC, so that it can be taken away, unlike `system:masters`.
pub const ADMIN_GROUP: &str = "keelway:cluster-admins";
/// By whom API servers know what the pass applied.
pub const OWNER: &str = "keelway";
/// The annotation of our bindings that tells which ones stand.
pub const BINDINGS_DIGEST: &str = "keelway.dev/digest";

/// Where and as whom the pass talks to a managed cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAccess {
    /// The machine from which to dial.
    pub machine: HypervisorName,
    /// The API server's address.
    pub address: SocketAddr,
    /// The name that its certificate must hold.
    pub server_name: &'static str,
    /// The Secret of the authority: `bundle.crt` verifies the server, `active.key` can sign a client.
    pub authority: SecretName,
}

/// Every API server of a cluster, those that were ready first, then by name.
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

/// The pass's own identity in a cluster.
#[must_use]
pub fn driver_identity(id: &ClusterId) -> CertificateReference {
    CertificateReference { secret: SecretName::of(id, DRIVER_SECRET), name: "client" }
}

/// A digest of all that [`first_bindings`] gives.
#[must_use]
pub fn bindings_digest() -> String {
    let own = Value::from(own_access()).to_string();
    sha256_hex([own.as_str(), worker::CLUSTER_CONTROLLER_ROLE, WORKER_CRDS_DIGEST].concat().as_bytes())
}

/// What a cluster gets from the pass, once: for server-side apply, in stages of which each relies on those before it. The last
/// one tells with [`BINDINGS_DIGEST`] that all are there.
///
/// The kinds of workers are among them, so that gateways have something to watch also where no cluster-controller runs, which
/// looks after them otherwise. They are applied in its name. Each object is applied by whom its label [`worker::MANAGED_BY`] tells.
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
    // API servers make these by themselves, a moment after they are ready.
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

/// The rights of people, of API servers, of gateways and of the pass.
fn own_access() -> Vec<Value> {
    let driver = json!([
        rule(RBAC, &["clusterrolebindings"], &["get"], &[DRIVER]),
        // Workers that are evicted, and what is told of them.
        rule(OWN, &["tombstones"], &["get", "list", "create"], &[]),
        rule(OWN, &["wireguardpeers"], &["get", "list", "delete"], &[]),
        // Which token a worker joined with, and whether it is one without a peer.
        rule(OWN, &["workeridentities"], &["get", "list"], &[]),
        rule("", &["nodes"], &["get", "list", "delete"], &[]),
    ]);
    // Bootstrap tokens, which have no kind of their own and no names that are known beforehand: what is made and deleted is
    // narrowed by a policy, what is read cannot be.
    let tokens = json!([rule("", &["secrets"], &["get", "list", "create", "delete"], &[])]);
    let gateway = json!([rule(OWN, &["wireguardpeers"], &["get", "list", "watch"], &[])]);
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

/// Of Secrets, the pass makes and deletes bootstrap tokens and nothing else.
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

/// Asks for the first bindings where an API server is ready and says that they are not there, or not these.
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
                let on = format!("its API to tell its bindings: {why}");
                plan.wait_in_progress(name, name, on);
            }
            None => plan.wait_in_progress(name, name, "its API to be asked for its bindings"),
        }
    }
}

/// The subject of an administrator's certificate of this name.
#[must_use]
pub fn administrator(name: &str) -> CertificateSubject {
    client(name, &[ADMIN_GROUP])
}

/// The subject that applies the first bindings, before any other has a right to.
#[must_use]
pub fn first_administrator() -> CertificateSubject {
    client("keelway:first-bindings", &["system:masters"])
}
