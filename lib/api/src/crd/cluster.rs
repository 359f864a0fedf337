//! The checks of a Cluster by an API server.

use serde_json::{Value as Json, json};

use super::{
    arguments,
    cel::{CelRule, is, quoted, rule, write},
    fleet,
    forms::{CPU, ENDLESS, ID, MEMORY, SPAN, is_dns_name, release_form, subdomain},
    images, name, network, restore,
    schema::extend,
    snapshots,
};
use crate::{
    change::{CHANGES, ChangeRow, FieldChange},
    machine::SMALLEST_QUOTA,
    release::{MINORS, names},
    resources::{BESIDE_THE_DATABASE, BOUNDED, DEFAULT_QUOTA, LARGEST_QUOTA, least_cpu, least_memory},
    validated::{LONGEST_DRAIN, LONGEST_LIFE, SHORTEST_LIFE},
};

const RANGES: [&str; 6] = [
    "spec.network.podCIDRs",
    "spec.network.serviceCIDRs",
    "spec.vpn.cidrs",
    "status.birth.network.podCIDRs",
    "status.birth.network.serviceCIDRs",
    "status.birth.vpn.cidrs",
];
pub(super) const LIVES: [&str; 4] = ["componentTTL", "workerTTL", "adminTTL", "authorityTTL"];
/// Other durations beside them.
const PAUSES: [&str; 2] = ["workerGrace", "rotationDeadline"];

/// Adds the checks to the schema.
pub(super) fn refine(root: &mut Json) {
    bounds(root);
    images::bounds(root);
    restore::bounds(root);
    snapshots::bounds(root);
    let mut rules = name::rules();
    rules.extend(of_spec());
    rules.extend(images::rules());
    rules.extend(network::rules());
    rules.extend(fleet::rules());
    rules.extend(arguments::rules());
    rules.extend(lives());
    rules.extend(workers());
    rules.extend(amounts());
    rules.extend(restore::rules());
    rules.extend(snapshots::rules());
    rules.extend(of_status());
    rules.extend(of_changes());
    write(root, rules);
}

/// Sets the maximum lengths of lists and texts. An API server rejects a rule whose cost is not bounded.
fn bounds(root: &mut Json) {
    let mut text = |path: &str, most: u32| extend(root, path, json!({"maxLength": most}));
    text("spec.className", 63);
    text("spec.version", 32);
    text("spec.network.dnsDomain", 253);
    text("spec.endpoint.host", 253);
    text("spec.images.pullSecrets[].name", 253);
    text("spec.controlPlane.kubeAPIServer.extraSANs[]", 255);
    for ranges in RANGES {
        text(&format!("{ranges}[]"), 64);
    }
    text("spec.addons.kubeProxy.nodePortAddresses[]", 64);
    text("status.birth.network.dnsDomain", 253);
    text("status.birth.serviceAccountIssuer", 512);
    for life in LIVES {
        text(&format!("spec.certificates.{life}"), 32);
    }
    for pause in PAUSES {
        text(&format!("spec.certificates.{pause}"), 32);
    }
    text("spec.etcd.quota", 32);
    text("spec.workers.version", 32);
    text("spec.workers.drainTimeout", 32);
    for (_, resources) in BOUNDED {
        text(&format!("{resources}.limits.cpu"), 32);
        text(&format!("{resources}.limits.memory"), 32);
    }
    let mut list = |path: &str, most: u32| extend(root, path, json!({"maxItems": most}));
    for ranges in RANGES {
        list(ranges, 2);
    }
    list("spec.addons.kubeProxy.nodePortAddresses", 16);
    list("spec.images.pullSecrets", 16);
    list("spec.upgrade.ignorePreflightErrors", 16);
    list("spec.controlPlane.kubeAPIServer.extraSANs", 100);
    for (_, path) in arguments::PLACES {
        extend(root, path, json!({"maxProperties": 64}));
        extend(root, &format!("{path}{{}}"), json!({"maxLength": 1024}));
    }
    extend(root, "spec.workers.maxUnavailable", json!({"minimum": 1}));
    extend(root, "status.id", json!({"pattern": ID, "maxLength": 16}));
}

fn of_spec() -> Vec<CelRule> {
    let wildcard = "self.startsWith('*.') ? self.substring(2) : self";
    vec![
        rule(
            "spec.version",
            is("self", &release_form(MINORS.iter())),
            format!("\"{{self}}\" is not supported; supported values: {}", names()),
        ),
        rule(
            "spec.etcd.replicas",
            "self % 2 == 1",
            "must be odd: an even number of members does not tolerate more failures than one member fewer; write 1, 3, 5 or 7",
        ),
        rule(
            "spec.network.dnsDomain",
            is("self", &subdomain()),
            "\"{self}\" is not a DNS domain; write lowercase labels joined by dots, such as cluster.local",
        ),
        rule(
            "spec.controlPlane.kubeAPIServer.extraSANs[]",
            format!("isIP(self) || {}", is_dns_name(&format!("({wildcard})"))),
            "\"{self}\" is neither a DNS name nor an address; write api.example.com, *.example.com or 192.0.2.1, without scheme and port",
        ),
        rule(
            "spec.endpoint.host",
            "!isIP(self)",
            "must be a DNS name, not the address {self}; add the address to spec.controlPlane.kubeAPIServer.extraSANs instead",
        ),
        rule(
            "spec.endpoint.host",
            format!("isIP(self) || {}", is_dns_name("self")),
            "\"{self}\" is not a DNS name; write a name such as api.example.com, without scheme and port",
        ),
        rule(
            "spec.images.pullSecrets[].name",
            is("self", &subdomain()),
            "\"{self}\" is not an RFC 1123 subdomain; write the name of a Secret of the type kubernetes.io/dockerconfigjson",
        ),
    ]
}

fn lives() -> Vec<CelRule> {
    let is_span = |text: &str| is(text, SPAN);
    let is_endless = |text: &str| format!("{text}.matches('{ENDLESS}')");
    let mut rules = Vec::new();
    let is_bounded =
        format!("!{} || (!{} && duration(self) <= duration('{LONGEST_LIFE}'))", is_span("self"), is_endless("self"));
    let too_long = format!("must be at most {LONGEST_LIFE}, not {{self}}; reduce it");
    for life in LIVES.into_iter().chain(PAUSES) {
        let path = format!("spec.certificates.{life}");
        rules.push(rule(
            path.clone(),
            is_span("self"),
            "\"{self}\" is not a duration such as 8760h, 1h30m or 90s; write it in that form",
        ));
        if PAUSES.contains(&life) {
            rules.push(rule(path, is_bounded.clone(), too_long.clone()));
            continue;
        }
        rules.push(rule(
            path.clone(),
            format!("!{} || {} || duration(self) >= duration('{SHORTEST_LIFE}')", is_span("self"), is_endless("self")),
            format!(
                "must be at least {SHORTEST_LIFE}, not {{self}}; increase it: Keelway needs time to renew certificates"
            ),
        ));
        rules.push(rule(path, is_bounded.clone(), too_long.clone()));
    }
    let authority = "self.authorityTTL";
    for life in LIVES.into_iter().filter(|life| *life != "authorityTTL") {
        let own = format!("self.{life}");
        let known = [own.as_str(), authority].map(|text| format!("!{} || {}", is_span(text), is_endless(text)));
        rules.push(rule(
            "spec.certificates",
            format!("{} || duration({own}) <= duration({authority})", known.join(" || ")),
            format!(
                "{life}: must not be longer than authorityTTL ({{{authority}}}), but is {{{own}}}; reduce it, or increase authorityTTL"
            ),
        ));
    }
    rules
}

/// Returns the rules for kubelets.
fn workers() -> Vec<CelRule> {
    let is_known = |text: &str| is(text, &release_form(MINORS.iter()));
    let minor = |version: &str| format!("int({version}.split('.')[1])");
    let (own, of_cluster) = ("self.workers.version", "self.version");
    let is_span = is("self", SPAN);
    vec![
        rule(
            "spec.workers.version",
            is_known("self"),
            format!("\"{{self}}\" is not supported; supported values: {}", names()),
        ),
        rule(
            "spec",
            format!(
                "!has(self.workers) || !has({own}) || !{} || !{} || {} <= {}",
                is_known(own),
                is_known(of_cluster),
                minor(own),
                minor(of_cluster)
            ),
            format!(
                "workers.version: must not be of a newer minor version than spec.version ({{{of_cluster}}}), but is {{{own}}}; write a release of \
                 the same or of an earlier minor version, or upgrade the cluster, too"
            ),
        ),
        rule(
            "spec.workers.drainTimeout",
            is_span.clone(),
            "\"{self}\" is not a duration such as 8760h, 1h30m or 90s; write it in that form",
        ),
        rule(
            "spec.workers.drainTimeout",
            format!("!{is_span} || (!self.matches('{ENDLESS}') && duration(self) <= duration('{LONGEST_DRAIN}'))"),
            format!("must be at most {LONGEST_DRAIN}, not {{self}}; reduce it"),
        ),
    ]
}

/// Returns the rules for the sizes of databases and the resources of components.
fn amounts() -> Vec<CelRule> {
    let is_memory = |text: &str| is(text, MEMORY);
    let is_less = |text: &str, least: &str| format!("quantity({text}).compareTo(quantity({least})) < 0");
    let mut rules = form("spec.etcd.quota", MEMORY, "memory", "4Gi or 512Mi");
    rules.push(rule(
        "spec.etcd.quota",
        format!(
            "!{} || !({} || {})",
            is_memory("self"),
            is_less("self", &quoted(&SMALLEST_QUOTA.to_string())),
            is_less(&quoted(&LARGEST_QUOTA.to_string()), "self")
        ),
        format!("must be from {SMALLEST_QUOTA} to {LARGEST_QUOTA}, not {{self}}; choose a size that etcd supports"),
    ));
    for (role, resources) in BOUNDED {
        let (cpu, memory) = (format!("{resources}.limits.cpu"), format!("{resources}.limits.memory"));
        rules.extend(form(&cpu, CPU, "CPU", "2 or 500m"));
        rules.extend(form(&memory, MEMORY, "memory", "4Gi or 512Mi"));
        let (least_cpu, least_memory) = (least_cpu(role).to_string(), least_memory(role).to_string());
        for (path, form, least) in [(cpu, CPU, least_cpu), (memory, MEMORY, least_memory)] {
            rules.push(rule(
                path,
                format!("!{} || !({})", is("self", form), is_less("self", &quoted(&least))),
                format!("{{self}} is less than {role} needs when idle; write {least} or more"),
            ));
        }
    }
    let memory = "self.resources.limits.memory";
    let quota = format!("(has(self.quota) ? self.quota : {})", quoted(&DEFAULT_QUOTA.to_string()));
    let beside = quoted(&BESIDE_THE_DATABASE.to_string());
    rules.push(rule(
        "spec.etcd",
        format!(
            "!has(self.resources) || !has(self.resources.limits) || !has({memory}) || !{} || !{} ||              quantity({memory}).compareTo(quantity({quota}).add(quantity({beside}))) >= 0",
            is_memory(memory),
            is_memory(&quota),
        ),
        format!(
            "resources.limits.memory: {{{memory}}} is too small for a database of the quota, {{{quota}}}; write \
             {BESIDE_THE_DATABASE} more than the quota, or reduce the quota"
        ),
    ));
    rules
}

/// Returns the rule that a text is an amount.
pub(super) fn form(path: &str, form: &str, what: &str, such_as: &str) -> Vec<CelRule> {
    let says = format!("\"{{self}}\" is not an amount of {what} such as {such_as}; write it in that form");
    vec![rule(path, is("self", form), says)]
}

/// Returns the rules for values that are decided once, because paths and labels on machines are derived from them.
fn of_status() -> Vec<CelRule> {
    let once = "is immutable; restore the original value";
    vec![
        rule("status", "!has(oldSelf.id) || (has(self.id) && self.id == oldSelf.id)", format!("id: {once}")),
        rule(
            "status",
            "!has(oldSelf.etcd) || (has(self.etcd) && self.etcd.bornAt == oldSelf.etcd.bornAt)",
            format!("etcd.bornAt: {once}"),
        ),
        rule(
            "status",
            "!has(oldSelf.birth) || (has(self.birth) && self.birth == oldSelf.birth)",
            format!("birth: {once}"),
        ),
    ]
}

/// Returns the rules for fields that may not change once a cluster exists. An API server compares with the previous document, not with what runs.
fn of_changes() -> Vec<CelRule> {
    let is_unborn = "!has(oldSelf.status) || !has(oldSelf.status.birth)";
    let of_row = |row: &ChangeRow| {
        let path = row.path;
        match row.change {
            FieldChange::Free => None,
            FieldChange::OnceReserved => Some(rule(
                "",
                format!(
                    "!has(self.{path}) || !has(self.status) || !has(self.status.ingressPort) || self.{path} == self.status.ingressPort"
                ),
                format!("{path}: is immutable once status.ingressPort is set; write that port, or remove the field"),
            )),
            FieldChange::Never(_) => Some(rule(
                "",
                format!("{is_unborn} || self.{path} == oldSelf.{path}"),
                format!("{path}: is immutable; restore the original value, or create a new cluster"),
            )),
            FieldChange::NeverAddedOrRemoved => Some(rule(
                "",
                format!("{is_unborn} || has(self.{path}) == has(oldSelf.{path})"),
                format!("{path}: is immutable; restore or remove the field as it was, or create a new cluster"),
            )),
            FieldChange::NoMinorDown => {
                let known = release_form(MINORS.iter());
                let (old, new) = (format!("oldSelf.{path}"), format!("self.{path}"));
                let minor = |version: &str| format!("int({version}.split('.')[1])");
                Some(rule(
                    "",
                    format!(
                        "{is_unborn} || !{} || !{} || {} >= {}",
                        is(&old, &known),
                        is(&new, &known),
                        minor(&new),
                        minor(&old)
                    ),
                    format!(
                        "{path}: must not be of an older minor version than {{{old}}}; write a release of the same or of a \
                         later minor version"
                    ),
                ))
            }
        }
    };
    CHANGES.iter().filter_map(of_row).collect()
}
