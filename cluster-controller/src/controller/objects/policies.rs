//! Limits what workers may write, with ValidatingAdmissionPolicies.

use keelway_api::worker::{BOOTSTRAPPERS, CERTIFICATE_ID, CREDENTIAL_ID, GATEWAY_USER, LONGEST_NODE_NAME};
use serde_json::{Value, json};

use super::super::{
    csr::{CLIENT_SIGNER, NODES, SERVING_SIGNER},
    registry::{ALLOCATION, NODE, REVOKED},
};

/// The largest certificate request, in bytes. Requests of kubelets have about 500, and one with a key of 8192 bits has 3000.
const LARGEST_REQUEST: usize = 8192;

pub(super) fn objects() -> Vec<Value> {
    [own_peer(), own_node(), no_pod_ranges(), requests(), current()].into_iter().flatten().collect()
}

/// Limits the size of requests by nodes and join tokens to the two signers, because every controller keeps all requests in memory.
fn requests() -> [Value; 2] {
    let rules = json!([{
        "apiGroups": ["certificates.k8s.io"],
        "apiVersions": ["*"],
        "resources": ["certificatesigningrequests"],
        "operations": ["CREATE"],
    }]);
    let validations = json!([
        {
            "expression": format!("object.spec.signerName == '{CLIENT_SIGNER}' || (variables.isNode && object.spec.signerName == '{SERVING_SIGNER}')"),
            "message": format!("a worker may only request certificates of {CLIENT_SIGNER} and, once it has joined, of {SERVING_SIGNER}"),
            "reason": "Forbidden",
        },
        {
            "expression": format!("object.spec.request.size() <= {LARGEST_REQUEST}"),
            "message": format!("a certificate signing request must have at most {LARGEST_REQUEST} bytes"),
            "reason": "Forbidden",
        },
        {
            "expression": format!("{BARE} || (variables.isGateway && {PROVEN})"),
            "message": "a worker's certificate signing request must not have labels, annotations, finalizers or owners; that of a gateway has only a proof",
            "reason": "Forbidden",
        },
    ]);
    let variables = json!([
        { "name": "isNode", "expression": format!("'{NODES}' in request.userInfo.groups") },
        { "name": "isGateway", "expression": format!("request.userInfo.username == '{GATEWAY_USER}'") },
    ]);
    let [mut policy, binding] = policy("keelway-requests", &rules, &variables, &validations, false);
    policy["spec"]["matchConditions"] = json!([{
        "name": "by-a-worker",
        "expression": format!("'{NODES}' in request.userInfo.groups || '{BOOTSTRAPPERS}' in request.userInfo.groups || request.userInfo.username == '{GATEWAY_USER}'"),
    }]);
    [policy, binding]
}

/// An object has annotations of a limited size, and no other metadata of its own besides its name.
const PROVEN: &str = "!has(object.metadata.labels) && !has(object.metadata.finalizers) && !has(object.metadata.ownerReferences) && object.metadata.annotations.size() <= 2 && object.metadata.annotations.all(key, object.metadata.annotations[key].size() <= 8192)";
/// An object has no metadata of its own besides its name.
const BARE: &str = "!has(object.metadata.labels) && !has(object.metadata.annotations) && !has(object.metadata.finalizers) && !has(object.metadata.ownerReferences)";

/// A worker that left the cluster can no longer write with its certificate.
fn current() -> [Value; 2] {
    let rule = |group: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["*"],
            "resources": resources,
            "operations": ["CREATE", "UPDATE", "DELETE"],
        })
    };
    let rules = json!([
        rule("keelway.dev", &["wireguardpeers"]),
        rule("", &["nodes", "nodes/status", "pods", "pods/status", "pods/eviction", "serviceaccounts/token"]),
        rule("coordination.k8s.io", &["leases"]),
    ]);
    let id = format!("'{CREDENTIAL_ID}'");
    let variables = json!([{
        "name": "ids",
        "expression": format!("has(request.userInfo.extra) && {id} in request.userInfo.extra ? request.userInfo.extra[{id}] : []"),
    }]);
    let validations = json!([{
        "expression": format!("!has(params.data) || !variables.ids.exists(id, id.replace('{CERTIFICATE_ID}', '{REVOKED}') in params.data)"),
        "messageExpression": "request.userInfo.username + ' left the cluster, and its certificate is revoked; run `keelway node forget`, and join with a token'",
        "reason": "Forbidden",
    }]);
    let [policy, mut binding] = policy("keelway-current", &rules, &variables, &validations, true);
    // Without a list, no certificate is revoked.
    binding["spec"]["paramRef"]["parameterNotFoundAction"] = json!("Allow");
    [policy, binding]
}

/// A worker may write only the peer with its own name.
fn own_peer() -> [Value; 2] {
    let rules = json!([{
        "apiGroups": ["keelway.dev"],
        "apiVersions": ["*"],
        "resources": ["wireguardpeers"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
    }]);
    let validations = json!([
        {
            "expression": "request.userInfo.username == 'system:node:' + variables.name",
            "messageExpression": "request.userInfo.username + ' may only write its own WireGuardPeer, not that of ' + variables.name",
            "reason": "Forbidden",
        },
        {
            "expression": format!("request.operation == 'DELETE' || ({BARE})"),
            "message": "a worker's WireGuardPeer must not have labels, annotations, finalizers or owners",
            "reason": "Forbidden",
        },
        {
            "expression": format!("request.operation == 'DELETE' || variables.name.size() <= {LONGEST_NODE_NAME}"),
            "message": format!("the name of a worker must have at most {LONGEST_NODE_NAME} characters"),
            "reason": "Forbidden",
        },
    ]);
    let variables = json!([{
        "name": "name",
        "expression": "request.operation == 'DELETE' ? oldObject.metadata.name : object.metadata.name",
    }]);
    policy("keelway-own-peer", &rules, &variables, &validations, false)
}

/// A Node needs a peer with its name, and may have only that peer's addresses.
fn own_node() -> [Value; 2] {
    let variables = json!([
        { "name": "key", "expression": format!("'{NODE}' + object.metadata.name") },
        { "name": "allocated", "expression": "has(params.data) && variables.key in params.data ? params.data[variables.key].split(',') : []" },
        { "name": "addresses", "expression": "has(object.status) && has(object.status.addresses) ? object.status.addresses.filter(a, a.type in ['InternalIP', 'ExternalIP']).map(a, a.address) : []" },
    ]);
    let validations = json!([
        {
            "expression": "request.operation != 'CREATE' || variables.allocated.size() > 0",
            "messageExpression": "'there is no WireGuardPeer ' + object.metadata.name + ' with an address; join first'",
            "reason": "Forbidden",
        },
        {
            "expression": "variables.addresses.all(a, a in variables.allocated)",
            "messageExpression": "'the addresses of ' + object.metadata.name + ' must be those of its WireGuardPeer: ' + variables.allocated.join(', ')",
            "reason": "Forbidden",
        },
    ]);
    policy("keelway-own-node", &nodes(), &variables, &validations, true)
}

/// Only kube-controller-manager assigns pod ranges.
fn no_pod_ranges() -> [Value; 2] {
    let variables = json!([
        { "name": "wanted", "expression": ranges("object") },
        { "name": "had", "expression": format!("request.operation == 'CREATE' ? [] : {}", ranges("oldObject")) },
    ]);
    let validations = json!([{
        "expression": "variables.wanted == variables.had",
        "message": "a worker must not set or change the ranges of its pods",
        "reason": "Forbidden",
    }]);
    policy("keelway-no-pod-ranges", &nodes(), &variables, &validations, false)
}

fn ranges(object: &str) -> String {
    format!(
        "((has({object}.spec.podCIDR) ? [{object}.spec.podCIDR] : []) + (has({object}.spec.podCIDRs) ? {object}.spec.podCIDRs : []))"
    )
}

fn nodes() -> Value {
    json!([{
        "apiGroups": [""],
        "apiVersions": ["*"],
        "resources": ["nodes", "nodes/status"],
        "operations": ["CREATE", "UPDATE"],
    }])
}

/// Builds a policy for requests of nodes, and its binding. `params` is the list of workers, if the policy reads it.
fn policy(name: &str, rules: &Value, variables: &Value, validations: &Value, reads_workers: bool) -> [Value; 2] {
    let mut policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": rules },
            "matchConditions": [{ "name": "by-a-node", "expression": format!("'{NODES}' in request.userInfo.groups") }],
            "variables": variables,
            "validations": validations,
        },
    });
    let mut binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    if reads_workers {
        let (namespace, name) = ALLOCATION;
        policy["spec"]["paramKind"] = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
        binding["spec"]["paramRef"] =
            json!({ "namespace": namespace, "name": name, "parameterNotFoundAction": "Deny" });
    }
    [policy, binding]
}
