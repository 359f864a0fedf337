//! The view of the components of one role of one cluster.

use std::collections::BTreeSet;

use keelway_api::{Component, condition};

use super::TableRow;

#[derive(Default)]
pub(crate) struct RoleView {
    title: String,
    all: usize,
    ready: usize,
    versions: BTreeSet<String>,
    hypervisors: BTreeSet<String>,
}

impl TableRow for RoleView {
    const HEADER: &'static [&'static str] = &["COMPONENTS", "READY", "VERSION", "HYPERVISORS"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let ready = format!("{}/{}", self.ready, self.all);
        vec![self.title.clone(), ready, list(&self.versions), list(&self.hypervisors)]
    }
}

impl RoleView {
    /// Returns the row that a component belongs to.
    pub(crate) fn title(component: &Component) -> String {
        format!("{}/{}", component.spec.cluster, component.spec.role)
    }

    pub(crate) fn add(&mut self, component: &Component) {
        let conditions = component.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        self.title = Self::title(component);
        self.all += 1;
        self.ready += usize::from(condition::is_true(conditions, "Ready"));
        self.versions.insert(component.spec.version.clone());
        self.hypervisors.insert(component.spec.hypervisor.to_string());
    }
}
