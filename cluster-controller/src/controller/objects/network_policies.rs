//! A warning for users who write NetworkPolicies, which the default CNI configuration does not enforce.

use serde_json::{Value, json};

/// The name of policy and binding.
const NAME: &str = "keelway-network-policies";
/// The text of the warning, and of the Event on a NetworkPolicy.
pub(crate) const NOT_ENFORCED: &str = "the default CNI configuration of this cluster does not enforce NetworkPolicies: they restrict no traffic; install a CNI plugin that enforces them, and set spec.addons.cni.enabled of the Cluster to false";

/// Returns the policy and its binding. The API server accepts the object, and `kubectl` prints the warning.
pub(super) fn objects() -> [Value; 2] {
    let rules = json!([{
        "apiGroups": ["networking.k8s.io"],
        "apiVersions": ["*"],
        "resources": ["networkpolicies"],
        "operations": ["CREATE", "UPDATE"],
    }]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": NAME },
        "spec": {
            // A warning is no reason to refuse an object.
            "failurePolicy": "Ignore",
            "matchConstraints": { "resourceRules": rules },
            "validations": [{ "expression": "false", "message": NOT_ENFORCED }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": NAME },
        "spec": { "policyName": NAME, "validationActions": ["Warn"] },
    });
    [policy, binding]
}
