//! The inventory of hypervisors.

use keelway_api::{
    Documents, Hypervisor,
    hypervisor::{DiskQuantities, HypervisorStatus, Quantities},
    jiff::Timestamp,
    machine::{Amount, Disk},
    name::HypervisorName,
    validated::ZONE_LABEL,
};

use super::{TableRow, age, message_of, status_of};

/// A hypervisor with its resources and the requests of its components.
pub(crate) struct InventoryView(Vec<String>);

impl TableRow for InventoryView {
    const HEADER: &'static [&'static str] = &[
        "HYPERVISOR",
        "ROLE",
        "READY",
        "VERSION",
        "RUNTIME",
        "CPU USED/LEFT",
        "MEMORY USED/LEFT",
        "DISK USED/LEFT",
        "ZONE",
        "AGE",
        "COMPONENTS",
        "ADDRESSES",
        "OS",
        "KERNEL",
        "LAST HEARTBEAT",
        "MESSAGE",
    ];
    const NARROW: usize = 11;

    fn cells(&self) -> Vec<String> {
        self.0.clone()
    }
}

impl InventoryView {
    pub(crate) fn of(documents: &Documents, name: &HypervisorName, machine: &Hypervisor, now: Timestamp) -> Self {
        let status = machine.status.clone().unwrap_or_default();
        let allocation = Allocation::of(documents, name, &status);
        let labels = machine.metadata.labels.as_ref();
        let info = status.node_info.clone().unwrap_or_default();
        let addresses = &machine.spec.addresses;
        let heard = status.last_heartbeat_time.as_ref();
        Self(vec![
            name.to_string(),
            format!("{:?}", machine.spec.role),
            readiness(machine, &status),
            or_none(info.agent_version.as_deref().unwrap_or_default()),
            or_none(&info.container_runtime_version),
            allocation.cpu(),
            allocation.memory(),
            allocation.disk(),
            or_none(labels.and_then(|labels| labels.get(ZONE_LABEL)).map(String::as_str).unwrap_or_default()),
            age(machine.metadata.creation_timestamp.as_ref(), now),
            allocation.components.to_string(),
            [addresses.public.as_slice(), addresses.private.as_slice()].concat().join(","),
            or_none(&info.os_image),
            or_none(&info.kernel_version),
            heard.map_or_else(|| "<never>".to_owned(), |time| format!("{} ago", age(Some(time), now))),
            message_of(&status.conditions, "Ready"),
        ])
    }
}

/// Formats readiness as kubectl does for a Node.
fn readiness(machine: &Hypervisor, status: &HypervisorStatus) -> String {
    let ready = status_of(&status.conditions, "Ready");
    match (machine.spec.drain, machine.spec.unschedulable) {
        (true, _) => ready + ",Draining",
        (false, true) => ready + ",SchedulingDisabled",
        (false, false) => ready,
    }
}

/// The requests of the components on a machine, and the machine's resources.
pub(crate) struct Allocation {
    pub(crate) components: usize,
    pub(crate) requests: Amount,
    pub(crate) allocatable: Option<Amount>,
    pub(crate) disk: Option<Disk>,
}

impl Allocation {
    pub(crate) fn of(documents: &Documents, name: &HypervisorName, status: &HypervisorStatus) -> Self {
        let here = documents.components.values().filter(|component| component.spec.hypervisor == *name);
        let requests: Vec<Amount> = here.map(|component| component.spec.role.row().requests).collect();
        Self {
            components: requests.len(),
            requests: requests.into_iter().fold(Amount::default(), Amount::and),
            allocatable: status.allocatable.as_ref().and_then(Quantities::amount),
            disk: status.disk.as_ref().and_then(DiskQuantities::disk),
        }
    }

    /// Returns what is left for other components.
    pub(crate) fn left(&self) -> Option<Amount> {
        Some(self.allocatable?.less(self.requests))
    }

    fn cpu(&self) -> String {
        let left = self.left().map(|left| format!("{}m", left.cpu_millis));
        beside(format!("{}m", self.requests.cpu_millis), left)
    }

    fn memory(&self) -> String {
        beside(size(self.requests.memory_bytes), self.left().map(|left| size(left.memory_bytes)))
    }

    fn disk(&self) -> String {
        self.disk.map_or_else(unknown, |disk| {
            let used = disk.capacity_bytes.saturating_sub(disk.available_bytes);
            beside(size(used), Some(size(disk.available_bytes)))
        })
    }
}

fn beside(used: String, left: Option<String>) -> String {
    used + "/" + &left.unwrap_or_else(unknown)
}

fn unknown() -> String {
    "<unknown>".to_owned()
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text.to_owned() }
}

/// Formats bytes in the largest unit in which the number has at least two digits.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(40, "Ti"), (30, "Gi"), (20, "Mi")];
    if bytes == 0 {
        return "0".to_owned();
    }
    let found = UNITS.into_iter().find(|(shift, _)| bytes >> shift >= 10);
    found.map_or_else(|| format!("{}Ki", bytes >> 10), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_digits_or_more() {
        let shown = [0, 9 << 20, 10 << 20, 528 << 20, 9 << 30, 23 << 30, 10 << 40].map(size);
        assert_eq!(shown, ["0", "9216Ki", "10Mi", "528Mi", "9216Mi", "23Gi", "10Ti"]);
    }
}
