//! The checks of a Component by an API server. Keelway writes Components, not people.

use serde_json::{Value as Json, json};

use super::{
    cel::{CelRule, is, list, quoted, rule, write},
    forms::{ID, release_form},
    schema::extend,
};
use crate::{
    release::{MINORS, names},
    role::Role,
};

const MADE: &str = "Keelway creates Components: restore the document that reconcile wrote";

/// Adds the checks to the schema.
pub(super) fn refine(root: &mut Json) {
    extend(root, "spec.version", json!({"maxLength": 32}));
    extend(root, "spec.role", json!({"maxLength": 32}));
    extend(root, "spec.clusterId", json!({"pattern": ID, "maxLength": 16}));
    extend(root, "spec.ports", json!({"maxProperties": 8}));
    let mut rules = of_spec();
    rules.extend(Role::ALL.into_iter().map(ports));
    rules.extend(
        ["clusterId", "role", "index"]
            .map(|field| rule(format!("spec.{field}"), "self == oldSelf", "is immutable; restore the original value")),
    );
    write(root, rules);
}

fn of_spec() -> Vec<CelRule> {
    vec![
        rule(
            "",
            "self.metadata.name.startsWith(self.spec.role + '-') && self.metadata.name.matches('-[0-9]{1,9}$') && \
             int(self.metadata.name.substring(self.spec.role.size() + 1)) == self.spec.index",
            format!("metadata.name: must be {{self.spec.role}}-, followed by spec.index; {MADE}"),
        ),
        rule(
            "spec.version",
            is("self", &release_form(MINORS.iter())),
            format!("\"{{self}}\" is not supported; supported values: {}", names()),
        ),
        rule("spec.user", "self > 0", format!("must not be 0: components do not run as root; {MADE}")),
        rule("spec.ports{}", "self > 0", format!("must not be 0; {MADE}")),
        rule(
            "spec.ports",
            "self.all(one, self.all(other, one == other || self[one] != self[other]))",
            format!("two ports must not have the same number; {MADE}"),
        ),
    ]
}

/// Returns the rule for the ports of a role: exactly those that the role has.
fn ports(role: Role) -> CelRule {
    let all = role.row().ports;
    let missing = all.iter().filter(|name| !role.added_ports().contains(name));
    let missing = missing.map(|name| format!("{} in self.ports", quoted(name)));
    let mut parts: Vec<String> = missing.collect();
    parts.push(format!("self.ports.all(name, name in {})", list(all.iter().copied())));
    rule(
        "spec",
        format!("self.role != {} || ({})", quoted(role.row().name), parts.join(" && ")),
        format!("ports: {role} must have exactly the ports {}; {MADE}", all.join(", ")),
    )
}
