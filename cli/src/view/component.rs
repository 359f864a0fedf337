//! The view of components.

use keelway_api::{Component, name::PodName};

use super::{TableRow, status_of};

pub(crate) struct ComponentView {
    pub(crate) name: String,
    pub(crate) ready: String,
    pub(crate) version: String,
    pub(crate) hypervisor: String,
    pub(crate) ports: String,
    pub(crate) user: u32,
    pub(crate) placement: String,
}

impl TableRow for ComponentView {
    const HEADER: &'static [&'static str] =
        &["COMPONENT", "READY", "VERSION", "HYPERVISOR", "PORTS", "USER", "PLACEMENT"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.ready.clone(),
            self.version.clone(),
            self.hypervisor.clone(),
            self.ports.clone(),
            self.user.to_string(),
            self.placement.clone(),
        ]
    }
}

impl ComponentView {
    pub(crate) fn of(pod: &PodName, component: &Component) -> Self {
        let conditions = component.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let ports: Vec<String> = component.spec.ports.iter().map(|(name, port)| format!("{name}:{port}")).collect();
        Self {
            name: format!("{}/{}", component.spec.cluster, pod.component),
            ready: status_of(conditions, "Ready"),
            version: component.spec.version.clone(),
            hypervisor: component.spec.hypervisor.to_string(),
            ports: ports.join(","),
            user: component.spec.user,
            placement: component.spec.placement.clone(),
        }
    }
}
