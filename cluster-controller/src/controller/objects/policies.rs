//! What a worker may write, said to the API server itself: ValidatingAdmissionPolicies.

use keelway_api::worker::ALLOCATION;
use serde_json::{Value, json};

use super::super::csr::NODES;

pub(super) fn objects() -> Vec<Value> {
    [own_peer(), own_node(), no_pod_ranges()].into_iter().flatten().collect()
}

/// A worker's peer is the one of its own name.
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
            "messageExpression": "request.userInfo.username + ' may write its own WireGuardPeer only, not that of ' + variables.name",
            "reason": "Forbidden",
        },
        {
            "expression": "request.operation == 'DELETE' || (!has(object.metadata.finalizers) && !has(object.metadata.ownerReferences))",
            "message": "a worker's WireGuardPeer has neither finalizers nor owners",
            "reason": "Forbidden",
        },
    ]);
    let variables = json!([{
        "name": "name",
        "expression": "request.operation == 'DELETE' ? oldObject.metadata.name : object.metadata.name",
    }]);
    policy("keelway-own-peer", &rules, &variables, &validations, None)
}

/// A Node needs a peer of its name, and has that peer's addresses and no others.
fn own_node() -> [Value; 2] {
    let variables = json!([
        { "name": "allocated", "expression": "has(params.spec.nodes) && object.metadata.name in params.spec.nodes ? params.spec.nodes[object.metadata.name] : []" },
        { "name": "addresses", "expression": "has(object.status) && has(object.status.addresses) ? object.status.addresses.filter(a, a.type in ['InternalIP', 'ExternalIP']).map(a, a.address) : []" },
    ]);
    let validations = json!([
        {
            "expression": "request.operation != 'CREATE' || variables.allocated.size() > 0",
            "messageExpression": "'there is no WireGuardPeer ' + object.metadata.name + ' with an address: join first'",
            "reason": "Forbidden",
        },
        {
            "expression": "variables.addresses.all(a, a in variables.allocated)",
            "messageExpression": "'the addresses of ' + object.metadata.name + ' are those of its WireGuardPeer: ' + variables.allocated.join(', ')",
            "reason": "Forbidden",
        },
    ]);
    policy("keelway-own-node", &nodes(), &variables, &validations, Some(ALLOCATION))
}

/// Ranges of pods are kube-controller-manager's to give.
fn no_pod_ranges() -> [Value; 2] {
    let variables = json!([
        { "name": "wanted", "expression": ranges("object") },
        { "name": "had", "expression": format!("request.operation == 'CREATE' ? [] : {}", ranges("oldObject")) },
    ]);
    let validations = json!([{
        "expression": "variables.wanted == variables.had",
        "message": "a worker does not choose the ranges of its pods",
        "reason": "Forbidden",
    }]);
    policy("keelway-no-pod-ranges", &nodes(), &variables, &validations, None)
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

/// A policy for what nodes do, and its binding.
fn policy(name: &str, rules: &Value, variables: &Value, validations: &Value, parameters: Option<&str>) -> [Value; 2] {
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
    if let Some(parameters) = parameters {
        policy["spec"]["paramKind"] = json!({ "apiVersion": "keelway.dev/v1alpha1", "kind": "NodeAllocation" });
        binding["spec"]["paramRef"] = json!({ "name": parameters, "parameterNotFoundAction": "Deny" });
    }
    [policy, binding]
}
