//! The view of hypervisors.

use keelway_api::{Documents, Hypervisor};

use super::{TableRow, message_of, status_of};

pub(crate) struct HypervisorView {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) ready: String,
    pub(crate) components: usize,
    pub(crate) addresses: String,
    pub(crate) message: String,
}

impl TableRow for HypervisorView {
    const HEADER: &'static [&'static str] = &["HYPERVISOR", "ROLE", "READY", "COMPONENTS", "ADDRESSES", "RUNTIME"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.role.clone(),
            self.ready.clone(),
            self.components.to_string(),
            self.addresses.clone(),
            self.message.clone(),
        ]
    }
}

impl HypervisorView {
    pub(crate) fn of(documents: &Documents, machine: &Hypervisor) -> Self {
        let name = machine.metadata.name.clone().unwrap_or_default();
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let addresses = &machine.spec.addresses;
        let components =
            documents.components.values().filter(|component| component.spec.hypervisor.as_str() == name).count();
        Self {
            role: format!("{:?}", machine.spec.role),
            ready: status_of(conditions, "Ready"),
            components,
            addresses: [addresses.public.as_slice(), addresses.private.as_slice()].concat().join(","),
            message: message_of(conditions, "Ready"),
            name,
        }
    }
}
