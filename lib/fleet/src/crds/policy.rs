//! The checks of a SchedulePolicy by an API server: a policy that contradicts itself is refused at once.

use keelway_api::crd::{
    cel::{CelRule, is, rule, write},
    forms::{ENDLESS, LABEL, SPAN, subdomain},
    schema::extend,
};
use serde_json::{Value as Json, json};

use super::selector;

const KINDS: &str = "spec.resourceSelectors.kinds[]";
const TOLERATIONS: &str = "spec.tolerations";
const SPREAD: &str = "spec.spreadConstraints";
const AFTER: &str = "spec.failover.after";
/// The longest time that objects wait before they leave a cluster.
const LONGEST_AFTER: &str = "8760h";
const ORDER: &str = "spec.orderedClusterSelector";
const OVERRIDES: &str = "spec.spreadConstraints.overrides[]";
const RESOURCES: &str = "spec.spreadConstraints.overrides[].resources[]";
const FIELDS: &str = "spec.spreadConstraints.overrides[].resources[].override[]";
const SELECTORS: [&str; 3] =
    ["spec.namespaceSelector", "spec.resourceSelectors.labelSelectors[]", "spec.clusterSelector"];
/// A kind: letters and digits, and the first one is an uppercase letter in all kinds of Kubernetes.
const KIND: &str = "^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$";
/// A label key: NAME or PREFIX/NAME.
const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The grammar of `FieldPath`: names, `[n]` and `['key']`.
const FIELD_PATH: &str = "^[-\\w$]+(\\.[-\\w$]+|\\[\\d{1,6}\\]|\\['[^']+'\\])*$";

/// Adds the checks to the schema.
pub(super) fn refine(root: &mut Json) {
    bounds(root);
    let mut rules = selection();
    rules.extend(SELECTORS.iter().flat_map(|path| selector::rules(path)));
    rules.extend(ordering());
    rules.extend(spreading());
    rules.extend(overrides());
    rules.extend(failover());
    rules.extend(tolerations());
    write(root, rules);
}

fn bounds(root: &mut Json) {
    for path in SELECTORS {
        selector::bound(root, path);
    }
    let mut list = |path: &str, most: u32| extend(root, path, json!({"maxItems": most}));
    list("spec.resourceSelectors.labelSelectors", 16);
    list("spec.resourceSelectors.kinds", 64);
    list(&format!("{ORDER}.matchExpressions"), 1);
    list(&format!("{ORDER}.matchExpressions[].values"), 100);
    list(TOLERATIONS, 32);
    list("spec.spreadConstraints.percentageSplit", 100);
    list("spec.spreadConstraints.overrides", 100);
    list("spec.spreadConstraints.overrides[].resources", 16);
    list("spec.spreadConstraints.overrides[].resources[].override", 8);
    for path in ["spec.spreadConstraints.percentageSplit", "spec.spreadConstraints.overrides"] {
        extend(root, path, json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["topologyValue"]}));
        extend(root, &format!("{path}[].topologyValue"), json!({"maxLength": 63}));
    }
    for path in
        ["spec.spreadConstraints.overrides[].resources", "spec.spreadConstraints.overrides[].resources[].override"]
    {
        extend(root, path, json!({"minItems": 1}));
    }
    for path in [KINDS, RESOURCES] {
        extend(root, &format!("{path}.group"), json!({"maxLength": 253}));
        extend(root, &format!("{path}.version"), json!({"maxLength": 63}));
        extend(root, &format!("{path}.kind"), json!({"maxLength": 63}));
    }
    extend(root, &format!("{RESOURCES}.name"), json!({"maxLength": 253, "minLength": 1}));
    extend(root, &format!("{RESOURCES}.namespace"), json!({"maxLength": 63}));
    extend(root, &format!("{FIELDS}.fieldPath"), json!({"maxLength": 160}));
    extend(root, &format!("{TOLERATIONS}[].key"), json!({"maxLength": 316}));
    extend(root, &format!("{TOLERATIONS}[].value"), json!({"maxLength": 63}));
    extend(root, AFTER, json!({"maxLength": 32}));
    extend(root, &format!("{SPREAD}.topologyKey"), json!({"maxLength": 316}));
    extend(root, &format!("{ORDER}.matchExpressions"), json!({"minItems": 1}));
    extend(root, &format!("{ORDER}.matchExpressions[].key"), json!({"maxLength": 316}));
    extend(
        root,
        &format!("{ORDER}.matchExpressions[].values"),
        json!({"minItems": 1, "x-kubernetes-list-type": "set"}),
    );
    extend(root, &format!("{ORDER}.matchExpressions[].values[]"), json!({"maxLength": 63}));
}

fn selection() -> Vec<CelRule> {
    let some = |list: &str| format!("(has(self.{list}) && self.{list}.size() > 0)");
    vec![
        rule(
            "spec.resourceSelectors",
            format!("{} || {}", some("labelSelectors"), some("kinds")),
            "selects nothing; add kinds, or labelSelectors (one empty selector matches every object)",
        ),
        rule(
            KINDS,
            "self.group != 'fleet.keelway.dev'",
            "objects of the group fleet.keelway.dev belong to the fleet and are never placed; remove the kind",
        ),
        rule(
            format!("{KINDS}.kind"),
            format!("self.matches('{KIND}')"),
            "\"{self}\" is not a kind; write the kind as in manifests, such as Deployment",
        ),
        rule(
            format!("{KINDS}.group"),
            group(),
            "\"{self}\" is not an API group; write core, or a group such as apps, without the version",
        ),
    ]
}

/// Returns the condition that a text is an API group.
fn group() -> String {
    format!("self == '' || self.matches('^{}$')", subdomain().replace('\\', "\\\\"))
}

fn ordering() -> Vec<CelRule> {
    vec![
        rule(
            "spec",
            "!has(self.orderedClusterSelector) || !has(self.spreadConstraints)",
            "orderedClusterSelector has no meaning with spreadConstraints, which uses all clusters; remove one of them",
        ),
        rule(
            format!("{ORDER}.matchExpressions[].key"),
            format!("self.matches('{LABEL_KEY}')"),
            "\"{self}\" is not a label key; write a label of clusters, such as kubernetes.io/metadata.name",
        ),
    ]
}

fn spreading() -> Vec<CelRule> {
    let splits = "has(self.percentageSplit) && self.percentageSplit.size() > 0";
    vec![
        rule(
            SPREAD,
            format!("self.spreadMode != 'Duplicate' || !({splits})"),
            "percentageSplit has no meaning with spreadMode Duplicate, in which each cluster runs all replicas; remove it, or write spreadMode: Divide",
        ),
        rule(
            SPREAD,
            format!("!({splits}) || self.percentageSplit.map(share, share.percentage).sum() == 100"),
            "the percentages in percentageSplit must add up to 100; correct them, or remove percentageSplit for equal shares",
        ),
        rule(
            format!("{SPREAD}.topologyKey"),
            format!("self.matches('{LABEL_KEY}')"),
            "\"{self}\" is not a label key; write a label of clusters, such as kubernetes.io/metadata.name",
        ),
        rule(
            SPREAD,
            "self.spreadMode != 'Divide' || !has(self.overrides) || self.overrides.all(domain, \
             domain.resources.all(resource, resource.override.all(field, field.fieldPath != 'spec.replicas')))",
            "an override of spec.replicas contradicts spreadMode Divide; write the shares into percentageSplit, or spreadMode: Duplicate",
        ),
    ]
}

fn failover() -> Vec<CelRule> {
    vec![
        rule(
            "spec",
            "!has(self.failover) || !has(self.spreadConstraints) || self.spreadConstraints.spreadMode != 'Duplicate'",
            "failover has no meaning with spreadMode Duplicate, in which each cluster runs all replicas; remove it, or write spreadMode: Divide",
        ),
        rule(
            AFTER,
            is("self", SPAN),
            "\"{self}\" is not a duration such as 8760h, 1h30m or 90s; write it in that form",
        ),
        rule(
            AFTER,
            format!(
                "!{} || (!self.matches('{ENDLESS}') && duration(self) > duration('0s') && duration(self) <= duration('{LONGEST_AFTER}'))",
                is("self", SPAN)
            ),
            format!(
                "must be from 1s to {LONGEST_AFTER}, not {{self}}; write a time such as 5m, or remove failover if objects are to stay"
            ),
        ),
    ]
}

fn tolerations() -> Vec<CelRule> {
    let toleration = format!("{TOLERATIONS}[]");
    vec![
        rule(
            &toleration,
            "self.operator != 'Exists' || !has(self.value) || self.value == ''",
            "value has no meaning with the operator Exists, which tolerates every value; remove it, or write operator: Equal",
        ),
        rule(
            &toleration,
            "self.operator == 'Exists' || (has(self.key) && self.key != '')",
            "the operator Equal requires a key; add the key of the taints, or write operator: Exists for all taints",
        ),
    ]
}

fn overrides() -> Vec<CelRule> {
    let identity = "['apiVersion', 'kind', 'metadata', 'metadata.name', 'metadata.namespace', 'metadata.uid', 'metadata.ownerReferences', \
                    'metadata.finalizers']";
    vec![
        rule(
            format!("{FIELDS}.fieldPath"),
            format!("self.matches('{}')", FIELD_PATH.replace('\\', "\\\\").replace('\'', "\\'")),
            "\"{self}\" is not a field path; separate names by dots, write [0] for an item of a list, and ['a.b/c'] for a key with dots or slashes",
        ),
        rule(
            format!("{FIELDS}.fieldPath"),
            format!("!(self in {identity}) && self != 'status' && !self.startsWith('status.')"),
            "\"{self}\" identifies the object or is not yours to set; override a field of the spec, a label or an annotation",
        ),
        rule(
            format!("{RESOURCES}.kind"),
            format!("self.matches('{KIND}')"),
            "\"{self}\" is not a kind; write the kind as in manifests, such as Deployment",
        ),
        rule(
            format!("{RESOURCES}.group"),
            group(),
            "\"{self}\" is not an API group; write core, or a group such as apps, without the version",
        ),
        rule(
            format!("{OVERRIDES}.topologyValue"),
            "self != ''",
            "must not be empty; write the value of the label that topologyKey names",
        ),
        rule(
            format!("{RESOURCES}.namespace"),
            format!("self.matches('^{LABEL}$')"),
            "\"{self}\" is not a namespace; write its name, or remove the field for every namespace",
        ),
    ]
}
