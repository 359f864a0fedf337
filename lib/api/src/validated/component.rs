//! Validates a Component.

use std::collections::BTreeMap;

use crate::{Component, fault::Fault, name::PodName, release, schema::removal, tree::field};

use super::{FaultCollector, labels::check_metadata};

const PORTS: &str = "spec.ports";
const MADE: &str = "Keelway creates Components: restore the document that reconcile wrote";

/// Returns the name of the component, if every field of the document agrees with it.
pub(crate) fn component(document: &Component) -> Result<PodName, Vec<Fault>> {
    let mut faults = FaultCollector::default();
    check_metadata(&document.metadata, &mut faults);
    let spec = &document.spec;
    let name = spec.pod();
    if let Ok(name) = &name {
        agree("metadata.name", document.metadata.name.as_deref(), name.component.as_str(), &mut faults);
    }
    agree("metadata.namespace", document.metadata.namespace.as_deref(), &spec.cluster_id.namespace(), &mut faults);
    if release::find(&spec.version).is_none() {
        faults.add(
            "spec.version",
            format!("{:?} is not supported", spec.version),
            format!("supported values: {}", release::names()),
        );
    }
    if spec.user == 0 {
        faults.add("spec.user", "must not be 0: components do not run as root", MADE);
    }
    check_ports(document, &mut faults);
    if name.is_err() {
        faults.add("spec.index", "role and index do not form a valid name", MADE);
    }
    faults.or(name.ok())
}

fn agree(field: &str, found: Option<&str>, wanted: &str, faults: &mut FaultCollector) {
    if found != Some(wanted) {
        let found = found.unwrap_or_default();
        let problem = format!("must be {wanted:?}, which follows from spec, not {found:?}");
        faults.add(field, problem, MADE);
    }
}

fn check_ports(document: &Component, faults: &mut FaultCollector) {
    let spec = &document.spec;
    let wanted = spec.role.row().ports;
    for name in wanted {
        if !spec.ports.contains_key(*name) && !spec.role.added_ports().contains(name) {
            faults.add(&field(PORTS, name), "is required", MADE);
        }
    }
    let mut taken = BTreeMap::new();
    for (name, port) in &spec.ports {
        let field = field(PORTS, name);
        if !wanted.contains(&name.as_str()) {
            let problem = format!("{} does not have this port", spec.role);
            faults.add(&field, problem, removal(name, wanted));
        }
        if *port == 0 {
            faults.add(&field, "must not be 0", MADE);
        } else if let Some(other) = taken.insert(port, name) {
            faults.add(&field, format!("{port} is already the port {other}"), MADE);
        }
    }
}
