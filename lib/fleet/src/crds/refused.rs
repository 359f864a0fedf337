//! Policies that contradict themselves, for tests with an API server.

use serde_json::{Value as Json, json};

/// A policy that an API server refuses.
pub struct RefusedPolicy {
    /// What is wrong with it.
    pub title: &'static str,
    /// The object.
    pub policy: Json,
    /// The path of the field in the API server's message.
    pub field: &'static str,
    /// A part of the API server's message.
    pub message: &'static str,
}

/// Returns a policy for each check, which that check alone refuses. The field and the message are those of API servers.
#[must_use]
pub fn refused_policies() -> Vec<RefusedPolicy> {
    let mut all = selections();
    all.extend(orders());
    all.extend(spreads());
    all.extend(overrides());
    all.extend(failovers());
    all.extend(tolerations());
    all
}

fn refused(title: &'static str, spec: &Json, field: &'static str, message: &'static str) -> RefusedPolicy {
    let policy = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": "refused" },
        "spec": spec,
    });
    RefusedPolicy { title, policy, field, message }
}

fn selections() -> Vec<RefusedPolicy> {
    let kind =
        |group: &str, kind: &str| json!({ "resourceSelectors": { "kinds": [{ "group": group, "kind": kind }] } });
    let clusters = |expression: Json| {
        json!({
            "resourceSelectors": { "labelSelectors": [{}] },
            "clusterSelector": { "matchExpressions": [expression] },
        })
    };
    vec![
        refused("no object", &json!({ "resourceSelectors": {} }), "spec.resourceSelectors", "selects nothing"),
        refused(
            "a kind of the fleet",
            &kind("fleet.keelway.dev", "Cluster"),
            "spec.resourceSelectors.kinds[0]",
            "are never placed; remove the kind",
        ),
        refused(
            "a resource",
            &kind("apps", "deployments/scale"),
            "spec.resourceSelectors.kinds[0].kind",
            "is not a kind",
        ),
        refused(
            "a group with a version",
            &kind("apps/v1", "Deployment"),
            "spec.resourceSelectors.kinds[0].group",
            "is not an API group",
        ),
        refused(
            "an unknown operator",
            &clusters(json!({ "key": "tier", "operator": "Is", "values": ["prod"] })),
            "spec.clusterSelector.matchExpressions[0].operator",
            "write In, NotIn, Exists or DoesNotExist",
        ),
        refused(
            "no values",
            &clusters(json!({ "key": "tier", "operator": "In" })),
            "spec.clusterSelector.matchExpressions[0]",
            "require values; add at least one",
        ),
        refused(
            "values that mean nothing",
            &clusters(json!({ "key": "tier", "operator": "Exists", "values": ["prod"] })),
            "spec.clusterSelector.matchExpressions[0]",
            "do not support values; remove them",
        ),
    ]
}

fn orders() -> Vec<RefusedPolicy> {
    let order = |expressions: Json| {
        json!({
            "resourceSelectors": { "labelSelectors": [{}] },
            "orderedClusterSelector": { "matchExpressions": expressions },
        })
    };
    let by = |key: &str, operator: &str, values: Json| json!([{ "key": key, "operator": operator, "values": values }]);
    let mut spread = order(by("tier", "In", json!(["a"])));
    spread["spreadConstraints"] = json!({});
    let field = "spec.orderedClusterSelector.matchExpressions";
    vec![
        refused(
            "an order of clusters that all run the object",
            &spread,
            "spec",
            "has no meaning with spreadConstraints",
        ),
        refused("no order", &order(json!([])), field, "should have at least 1 items"),
        refused(
            "an operator without an order",
            &order(by("tier", "NotIn", json!(["a"]))),
            "spec.orderedClusterSelector.matchExpressions[0].operator",
            "supported values: \"In\"",
        ),
        refused(
            "a value that comes twice",
            &order(by("tier", "In", json!(["a", "a"]))),
            "spec.orderedClusterSelector.matchExpressions[0].values[1]",
            "Duplicate value",
        ),
        refused(
            "an order by what no label is",
            &order(by("no label", "In", json!(["a"]))),
            "spec.orderedClusterSelector.matchExpressions[0].key",
            "is not a label key",
        ),
    ]
}

fn spread(constraints: &Json) -> Json {
    json!({ "resourceSelectors": { "labelSelectors": [{}] }, "spreadConstraints": constraints })
}

fn spreads() -> Vec<RefusedPolicy> {
    let share = |value: &str, percentage: u32| json!({ "topologyValue": value, "percentage": percentage });
    vec![
        refused(
            "shares of copies",
            &spread(&json!({ "spreadMode": "Duplicate", "percentageSplit": [share("a", 50), share("b", 50)] })),
            "spec.spreadConstraints",
            "percentageSplit has no meaning with spreadMode Duplicate",
        ),
        refused(
            "shares that are not the whole",
            &spread(&json!({ "percentageSplit": [share("a", 50), share("b", 40)] })),
            "spec.spreadConstraints",
            "must add up to 100",
        ),
        refused(
            "two shares of one domain",
            &spread(&json!({ "percentageSplit": [share("a", 50), share("a", 50)] })),
            "spec.spreadConstraints.percentageSplit[1]",
            "Duplicate value",
        ),
        refused(
            "an unknown mode",
            &spread(&json!({ "spreadMode": "Share" })),
            "spec.spreadConstraints.spreadMode",
            "supported values: \"Divide\", \"Duplicate\"",
        ),
        refused(
            "a key that no label has",
            &spread(&json!({ "topologyKey": "no label" })),
            "spec.spreadConstraints.topologyKey",
            "is not a label key",
        ),
    ]
}

fn failovers() -> Vec<RefusedPolicy> {
    let with = |failover: Json| json!({ "resourceSelectors": { "labelSelectors": [{}] }, "failover": failover });
    let mut copies = spread(&json!({ "spreadMode": "Duplicate" }));
    copies["failover"] = json!({});
    let after = "spec.failover.after";
    vec![
        refused("failover of copies", &copies, "spec", "failover has no meaning with spreadMode Duplicate"),
        refused("a time that is not one", &with(json!({ "after": "5 minutes" })), after, "is not a duration"),
        refused("no time", &with(json!({ "after": "0s" })), after, "must be from 1s to 8760h"),
        refused("more than a year", &with(json!({ "after": "8761h" })), after, "must be from 1s to 8760h"),
        refused(
            "an unknown recovery",
            &with(json!({ "recovery": "Undo" })),
            "spec.failover.recovery",
            "supported values: \"Stay\", \"Return\"",
        ),
    ]
}

fn overrides() -> Vec<RefusedPolicy> {
    let with = |mode: &str, path: &str| {
        spread(&json!({
            "spreadMode": mode,
            "overrides": [{
                "topologyValue": "a",
                "resources": [{
                    "group": "apps",
                    "kind": "Deployment",
                    "name": "web",
                    "override": [{ "fieldPath": path, "value": { "staticValue": 1 } }],
                }],
            }],
        }))
    };
    let field = "spec.spreadConstraints.overrides[0].resources[0].override[0].fieldPath";
    vec![
        refused(
            "replicas that are divided",
            &with("Divide", "spec.replicas"),
            "spec.spreadConstraints",
            "an override of spec.replicas contradicts spreadMode Divide",
        ),
        refused("a path that is not one", &with("Duplicate", "spec..replicas"), field, "is not a field path"),
        refused("another name", &with("Duplicate", "metadata.name"), field, "identifies the object"),
        refused("a status", &with("Duplicate", "status.replicas"), field, "identifies the object"),
    ]
}

fn tolerations() -> Vec<RefusedPolicy> {
    let tolerating =
        |toleration: Json| json!({ "resourceSelectors": { "labelSelectors": [{}] }, "tolerations": [toleration] });
    vec![
        refused(
            "a value for every value",
            &tolerating(json!({ "key": "gpu", "operator": "Exists", "value": "true" })),
            "spec.tolerations[0]",
            "value has no meaning with the operator Exists",
        ),
        refused(
            "no key",
            &tolerating(json!({ "operator": "Equal", "value": "true" })),
            "spec.tolerations[0]",
            "the operator Equal requires a key",
        ),
    ]
}
