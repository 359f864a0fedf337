//! The checks of a ClusterClass by an API server.

use serde_json::{Value as Json, json};

use super::{
    cel::{CelRule, is, list, rule, write},
    cluster::{LIVES, form},
    forms::{CPU, LABEL, MEMORY, SPAN, release_form, subdomain},
    images, name,
    schema::extend,
    snapshots,
};
use crate::{
    argument::of_role,
    release::{MINORS, names},
    role::Role,
    validated::OPERATORS,
};

const ARGUMENTS: [(Role, &str); 3] = [
    (Role::KubeApiserver, "spec.allowedArguments.kubeAPIServer"),
    (Role::KubeControllerManager, "spec.allowedArguments.kubeControllerManager"),
    (Role::KubeScheduler, "spec.allowedArguments.kubeScheduler"),
];
const EXPRESSIONS: &str = "spec.hypervisorSelector.matchExpressions";

/// Adds the checks to the schema.
pub(super) fn refine(root: &mut Json) {
    bounds(root);
    images::bounds(root);
    let mut rules = name::rules();
    rules.extend(of_spec());
    rules.extend(images::rules());
    rules.extend(limits());
    rules.extend(selector());
    rules.extend(snapshots::rules_of_allowed());
    rules.extend(ARGUMENTS.into_iter().map(arguments));
    write(root, rules);
}

/// Sets the maximum lengths of lists and texts. An API server rejects a rule whose cost is not bounded.
fn bounds(root: &mut Json) {
    let mut list = |path: &str, most: u32, longest: u32| {
        extend(root, path, json!({"maxItems": most}));
        extend(root, &format!("{path}[]"), json!({"maxLength": longest}));
    };
    list("spec.namespaces", 1000, 63);
    list("spec.versions", 32, 32);
    for (_, path) in ARGUMENTS {
        list(path, 64, 63);
    }
    for (path, ..) in amounts() {
        extend(root, path, json!({"maxLength": 32}));
    }
    for path in lives() {
        extend(root, &path, json!({"maxLength": 32}));
    }
    extend(root, "spec.images.pullSecrets", json!({"maxItems": 16}));
    extend(root, "spec.images.pullSecrets[].namespace", json!({"maxLength": 63}));
    extend(root, "spec.images.pullSecrets[].name", json!({"maxLength": 253}));
    snapshots::bounds_of_allowed(root);
    extend(root, EXPRESSIONS, json!({"maxItems": 32}));
    extend(root, &format!("{EXPRESSIONS}[].operator"), json!({"maxLength": 32}));
    extend(root, &format!("{EXPRESSIONS}[].values"), json!({"maxItems": 100}));
}

fn of_spec() -> Vec<CelRule> {
    vec![
        rule(
            "spec.namespaces[]",
            is("self", LABEL),
            "\"{self}\" is not an RFC 1123 label; write the name of a namespace",
        ),
        rule(
            "spec.versions[]",
            is("self", &release_form(MINORS.iter())),
            format!("\"{{self}}\" is not supported; supported values: {}", names()),
        ),
        rule(
            "spec.images.pullSecrets[].namespace",
            is("self", LABEL),
            "\"{self}\" is not an RFC 1123 label; write the Secret's namespace",
        ),
        rule(
            "spec.images.pullSecrets[].name",
            is("self", &subdomain()),
            "\"{self}\" is not an RFC 1123 subdomain; write the name of a Secret of the type kubernetes.io/dockerconfigjson",
        ),
    ]
}

/// Returns the limits that are amounts, each with its pattern, its resource, and an example.
fn amounts() -> [(&'static str, &'static str, &'static str, &'static str); 3] {
    [
        ("spec.limits.cpu", CPU, "CPU", "2 or 500m"),
        ("spec.limits.memory", MEMORY, "memory", "4Gi or 512Mi"),
        ("spec.limits.etcdQuota", MEMORY, "memory", "4Gi or 512Mi"),
    ]
}

/// Returns the limits that are lifetimes of certificates.
fn lives() -> impl Iterator<Item = String> {
    let ends = ["spec.limits.minTTL", "spec.limits.maxTTL"];
    ends.into_iter().flat_map(|end| LIVES.into_iter().chain(["workerGrace"]).map(move |life| format!("{end}.{life}")))
}

fn limits() -> Vec<CelRule> {
    let amounts = amounts().into_iter().flat_map(|(path, pattern, what, such_as)| form(path, pattern, what, such_as));
    let life = |path: String| {
        rule(path, is("self", SPAN), "\"{self}\" is not a duration such as 8760h, 1h30m or 90s; write it in that form")
    };
    amounts.chain(lives().map(life)).collect()
}

fn selector() -> Vec<CelRule> {
    let place = format!("{EXPRESSIONS}[]");
    let known = OPERATORS.map(|(name, _)| name);
    let mut rules = vec![rule(
        format!("{place}.operator"),
        format!("self in {}", list(known)),
        format!("\"{{self}}\" is not supported; supported values: {}", known.join(", ")),
    )];
    for (name, takes_values) in OPERATORS {
        let (holds, says) = if takes_values {
            ("has(self.values) && self.values.size() > 0", "requires values; add at least one")
        } else {
            ("!has(self.values) || self.values.size() == 0", "does not support values; remove them")
        };
        rules.push(rule(place.clone(), format!("self.operator != '{name}' || ({holds})"), format!("{name} {says}")));
    }
    rules
}

fn arguments((role, path): (Role, &str)) -> CelRule {
    let names = of_role(role).iter().map(|argument| argument.name);
    rule(
        format!("{path}[]"),
        format!("self in {}", list(names.clone())),
        format!(
            "{role} does not support the argument \"{{self}}\"; supported values: {}",
            names.collect::<Vec<_>>().join(", ")
        ),
    )
}
