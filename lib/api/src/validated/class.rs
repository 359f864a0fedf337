//! Validates a ClusterClass.

use super::{
    FaultCollector, check_name,
    cluster::{check_overrides, check_registry},
    labels::check_metadata,
    snapshots,
};
use crate::{
    argument,
    class::ClusterClass,
    fault::Fault,
    name::{is_label, is_subdomain},
    release,
    role::Role,
    schema::suggestion,
    tree::{field, item},
};

/// The operators of selector expressions, and whether they take values.
pub(crate) const OPERATORS: [(&str, bool); 4] =
    [("In", true), ("NotIn", true), ("Exists", false), ("DoesNotExist", false)];

/// Returns the name, if every field is valid.
pub(crate) fn class(document: &ClusterClass) -> Result<String, Vec<Fault>> {
    let mut faults = FaultCollector::default();
    let name = document.metadata.name.clone().unwrap_or_default();
    check_name(Some(&name), &mut faults);
    check_metadata(&document.metadata, &mut faults);
    if document.metadata.namespace.is_some() {
        faults.add("metadata.namespace", "must not be set: a ClusterClass has no namespace", "remove it");
    }
    for (index, namespace) in document.spec.namespaces.iter().enumerate().filter(|(_, name)| !is_label(name, 63)) {
        let problem = format!("{namespace:?} is not an RFC 1123 label");
        faults.add(&item("spec.namespaces", index), problem, "write the name of a namespace");
    }
    check_selector(document, &mut faults);
    check_registry(document.spec.images.registry.as_deref(), &mut faults);
    check_overrides(&document.spec.images.overrides, &mut faults);
    check_pull_secrets(document, &mut faults);
    check_arguments(document, &mut faults);
    for (index, version) in document.spec.versions.iter().enumerate().filter(|(_, one)| release::find(one).is_none()) {
        let problem = format!("{version:?} is not supported");
        faults.add(&item("spec.versions", index), problem, format!("supported values: {}", release::names()));
    }
    for (index, sink) in document.spec.snapshot_sinks.iter().enumerate() {
        snapshots::check_allowed(&item("spec.snapshotSinks", index), sink, &mut faults);
    }
    faults.or(Some(name))
}

fn check_selector(document: &ClusterClass, faults: &mut FaultCollector) {
    let asked = document.spec.hypervisor_selector.match_expressions.iter().flatten();
    for (index, asked) in asked.enumerate() {
        let place = item("spec.hypervisorSelector.matchExpressions", index);
        let Some((name, takes_values)) = OPERATORS.into_iter().find(|(name, _)| *name == asked.operator) else {
            let help = suggestion(&asked.operator, &OPERATORS.map(|(name, _)| name));
            faults.add(&field(&place, "operator"), format!("{:?} is not supported", asked.operator), help);
            continue;
        };
        let has_values = asked.values.as_ref().is_some_and(|values| !values.is_empty());
        if takes_values != has_values {
            let (problem, help) = if takes_values {
                ("requires values", "add at least one")
            } else {
                ("does not support values", "remove them")
            };
            faults.add(&field(&place, "values"), format!("{name} {problem}"), help);
        }
    }
}

fn check_pull_secrets(document: &ClusterClass, faults: &mut FaultCollector) {
    for (index, secret) in document.spec.images.pull_secrets.iter().enumerate() {
        let place = item("spec.images.pullSecrets", index);
        if !is_label(&secret.namespace, 63) {
            let problem = format!("{:?} is not an RFC 1123 label", secret.namespace);
            faults.add(&field(&place, "namespace"), problem, "write the Secret's namespace");
        }
        if !is_subdomain(&secret.name) {
            let problem = format!("{:?} is not an RFC 1123 subdomain", secret.name);
            let help = "write the name of a Secret of the type kubernetes.io/dockerconfigjson";
            faults.add(&field(&place, "name"), problem, help);
        }
    }
}

fn check_arguments(document: &ClusterClass, faults: &mut FaultCollector) {
    let places = [
        (Role::KubeApiserver, "kubeAPIServer"),
        (Role::KubeControllerManager, "kubeControllerManager"),
        (Role::KubeScheduler, "kubeScheduler"),
    ];
    for (role, place) in places {
        let known: Vec<&str> = argument::of_role(role).iter().map(|argument| argument.name).collect();
        let allowed = document.spec.allowed_arguments.of(role).unwrap_or_default();
        for (index, name) in allowed.iter().enumerate().filter(|(_, name)| !known.contains(&name.as_str())) {
            let place = item(&format!("spec.allowedArguments.{place}"), index);
            faults.add(&place, format!("{role} does not support the argument {name:?}"), suggestion(name, &known));
        }
    }
}
