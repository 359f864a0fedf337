//! Computes metrics of machines.

use std::collections::BTreeMap;

use keelway_api::{
    Documents, Hypervisor, condition,
    hypervisor::{HypervisorRole, HypervisorStatus, Quantities},
    machine::Amount,
    name::HypervisorName,
};

use super::{
    clusters::gauge_value,
    family::{MetricFamily, MetricLabel, amount, count, seconds},
};

pub(super) fn families(documents: &Documents) -> Vec<MetricFamily> {
    let mut families =
        vec![hypervisors(documents), conditions(documents), components(documents), heartbeats(documents)];
    families.extend(of_cpu(documents));
    families.extend(of_memory(documents));
    families.extend(of_disk(documents));
    families
}

fn hypervisors(documents: &Documents) -> MetricFamily {
    let mut found = BTreeMap::new();
    for role in ["Private", "Public"] {
        found.extend([((role, "Ready"), 0), ((role, "NotReady"), 0)]);
    }
    for machine in documents.hypervisors.values() {
        let is_ready = status(machine).is_some_and(|status| condition::is_true(&status.conditions, "Ready"));
        let role = match machine.spec.role {
            HypervisorRole::Private => "Private",
            HypervisorRole::Public => "Public",
        };
        *found.entry((role, if is_ready { "Ready" } else { "NotReady" })).or_default() += 1;
    }
    let mut family = MetricFamily::new("hypervisors", "Machines by role and readiness");
    for ((role, state), number) in found {
        family.add([("role", role.to_owned()), ("state", state.to_owned())], count(number));
    }
    family
}

fn conditions(documents: &Documents) -> MetricFamily {
    let mut family = MetricFamily::new("hypervisor_condition", "1 if the condition of the machine is True, else 0");
    for (name, machine) in &documents.hypervisors {
        for condition in status(machine).iter().flat_map(|status| &status.conditions) {
            family.add(of(name).into_iter().chain([("condition", condition.type_.clone())]), gauge_value(condition));
        }
    }
    family
}

fn components(documents: &Documents) -> MetricFamily {
    let mut found: BTreeMap<_, _> = documents.hypervisors.keys().map(|name| (name, 0)).collect();
    for component in documents.components.values() {
        *found.entry(&component.spec.hypervisor).or_default() += 1;
    }
    let mut family = MetricFamily::new("hypervisor_components", "Number of components placed on a machine");
    for (name, number) in found {
        family.add(of(name), count(number));
    }
    family
}

fn heartbeats(documents: &Documents) -> MetricFamily {
    let name = "hypervisor_last_heartbeat_timestamp_seconds";
    let mut family =
        MetricFamily::new(name, "Time of the last recorded response of a machine, in seconds since the epoch");
    for (name, machine) in &documents.hypervisors {
        let at = status(machine).and_then(|status| status.last_heartbeat_time.as_ref());
        family.add_known(of(name), at.map(|at| seconds(at.0)));
    }
    family
}

fn of_cpu(documents: &Documents) -> [MetricFamily; 3] {
    let mut families = [
        MetricFamily::new("hypervisor_cpu_capacity_cores", "CPU cores of a machine"),
        MetricFamily::new(
            "hypervisor_cpu_allocatable_cores",
            "CPU cores of a machine that are allocatable to components",
        ),
        MetricFamily::new("hypervisor_cpu_requested_cores", "CPU cores that the components of a machine request"),
    ];
    amounts(documents, &mut families, |of| amount(of.cpu_millis) / 1000.0);
    families
}

fn of_memory(documents: &Documents) -> [MetricFamily; 3] {
    let mut families = [
        MetricFamily::new("hypervisor_memory_capacity_bytes", "Memory of a machine"),
        MetricFamily::new(
            "hypervisor_memory_allocatable_bytes",
            "Memory of a machine that is allocatable to components",
        ),
        MetricFamily::new("hypervisor_memory_requested_bytes", "Memory that the components of a machine request"),
    ];
    amounts(documents, &mut families, |of| amount(of.memory_bytes));
    families
}

/// Adds the capacity, the allocatable amount and the requested amount of each machine, in this order.
fn amounts(documents: &Documents, families: &mut [MetricFamily; 3], value: impl Fn(Amount) -> f64) {
    let asked = requested(documents);
    let [capacity, allocatable, requested] = families;
    for (name, machine) in &documents.hypervisors {
        let known = |quantities: fn(&HypervisorStatus) -> &Option<Quantities>| {
            status(machine).and_then(|status| quantities(status).as_ref()?.amount()).map(&value)
        };
        capacity.add_known(of(name), known(|status| &status.capacity));
        allocatable.add_known(of(name), known(|status| &status.allocatable));
        requested.add(of(name), value(asked.get(name).copied().unwrap_or_default()));
    }
}

fn requested(documents: &Documents) -> BTreeMap<&HypervisorName, Amount> {
    let mut asked: BTreeMap<&HypervisorName, Amount> = BTreeMap::new();
    for component in documents.components.values() {
        let sum = asked.entry(&component.spec.hypervisor).or_default();
        *sum = sum.and(component.spec.role.row().requests);
    }
    asked
}

fn of_disk(documents: &Documents) -> [MetricFamily; 2] {
    let mut capacity =
        MetricFamily::new("hypervisor_disk_capacity_bytes", "Size of the file system of /var/lib/keelway on a machine");
    let mut available = MetricFamily::new(
        "hypervisor_disk_available_bytes",
        "Available space below /var/lib/keelway on a machine, as of its last heartbeat",
    );
    for (name, machine) in &documents.hypervisors {
        let disk = status(machine).and_then(|status| status.disk.as_ref()?.disk());
        capacity.add_known(of(name), disk.map(|disk| amount(disk.capacity_bytes)));
        available.add_known(of(name), disk.map(|disk| amount(disk.available_bytes)));
    }
    [capacity, available]
}

fn status(machine: &Hypervisor) -> Option<&HypervisorStatus> {
    machine.status.as_ref()
}

/// Returns the labels of a machine.
pub(super) fn of(name: &HypervisorName) -> [MetricLabel; 1] {
    [("hypervisor", name.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLD: &str = include_str!("../../../docs/documents.in/hv-1.yaml");

    fn documents() -> Documents {
        let mut documents = Documents::read(WORLD.as_bytes()).unwrap();
        for machine in documents.hypervisors.values_mut() {
            let status = machine.status.get_or_insert_default();
            status.capacity = Some(Quantities { cpu: "4".to_owned(), memory: "8388608Ki".to_owned() });
            status.allocatable = Some(Quantities { cpu: "3900m".to_owned(), memory: "8126464Ki".to_owned() });
        }
        documents
    }

    #[test]
    fn amounts_are_in_base_units() {
        let documents = documents();
        assert_eq!(documents.hypervisors.len(), 1);
        let families = families(&documents);
        let lines = |name: &str| families.iter().find(|family| family.name == name).unwrap().lines();
        assert_eq!(lines("hypervisor_cpu_capacity_cores"), ["hypervisor=hv-1 4"]);
        assert_eq!(lines("hypervisor_cpu_allocatable_cores"), ["hypervisor=hv-1 3.9"]);
        assert_eq!(lines("hypervisor_cpu_requested_cores"), ["hypervisor=hv-1 0"]);
        assert_eq!(lines("hypervisor_memory_capacity_bytes"), ["hypervisor=hv-1 8589934592"]);
        assert_eq!(lines("hypervisor_components"), ["hypervisor=hv-1 0"]);
        assert_eq!(lines("hypervisor_disk_capacity_bytes"), Vec::<String>::new(), "a machine that does not tell");
    }
}
