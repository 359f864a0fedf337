//! Public machines, which run components of several clusters.

use std::collections::BTreeSet;

use keelway_e2e::{process, worker_fleet::WorkerFleet};

/// The ingresses and gateways of all clusters have no capabilities.
pub(crate) fn nothing_has_privilege(worker_fleet: &WorkerFleet) {
    let machines = worker_fleet.fleet.machines();
    let documents = worker_fleet.documents();
    let mut found = BTreeSet::new();
    for public in machines.iter().filter(|machine| machine.is_public()) {
        for cluster in documents.clusters.values() {
            for (name, running) in public.running_of(cluster.id().unwrap()) {
                let pid = public.container_pid(&running.container);
                for field in ["CapEff", "CapPrm", "CapBnd"] {
                    let value = process::status(pid, field).unwrap();
                    assert_eq!(value.trim_start_matches('0'), "", "{field} of {name}");
                }
                found.insert(format!("{}/{name}", cluster.reference().name));
            }
        }
    }
    let wanted = ["c1", "c2"].map(|cluster| {
        ["gateway-0", "gateway-1", "ingress-0", "ingress-1"].map(|component| format!("{cluster}/{component}"))
    });
    assert_eq!(found, wanted.into_iter().flatten().collect());
}
