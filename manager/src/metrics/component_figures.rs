//! Metrics of components that their machines report.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use keelway_api::{
    Component, Documents,
    machine::{Figures, MachineState, ObservedValue},
    name::{HypervisorName, PodName},
};

use super::{
    clusters,
    family::{MetricFamily, MetricLabel, amount},
};

/// The figures in the last observation of each machine. A machine that does not respond has none.
#[derive(Debug, Default)]
pub(super) struct Holdings(Mutex<BTreeMap<HypervisorName, BTreeMap<PodName, Figures>>>);

impl Holdings {
    pub(super) fn record_machine(&self, machine: &HypervisorName, seen: &ObservedValue<MachineState>) {
        let mut machines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.known().filter(|state| !state.figures.is_empty()) {
            Some(state) => {
                machines.insert(machine.clone(), state.figures.clone());
            }
            None => {
                machines.remove(machine);
            }
        }
    }

    /// Computes the metrics of components on the machines where they are placed.
    pub(super) fn families(&self, documents: &Documents) -> [MetricFamily; 3] {
        let mut sizes =
            MetricFamily::new("cluster_etcd_database_bytes", "Size of the database of an etcd member on disk");
        let mut quotas = MetricFamily::new(
            "cluster_etcd_quota_bytes",
            "Quota of the database of an etcd member, at which etcd refuses writes",
        );
        let mut peers = MetricFamily::new("cluster_tunnel_peers", "Number of WireGuard peers of a gateway");
        let machines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (machine, pods) in &*machines {
            let placed = pods.iter().filter_map(|(pod, figures)| Some((documents.components.get(pod)?, pod, figures)));
            for (component, pod, figures) in placed.filter(|(component, ..)| component.spec.hypervisor == *machine) {
                sizes.add_known(of(component, pod), figures.database_bytes.map(amount));
                let quota = documents.clusters.get(&component.spec.cluster).map(|cluster| cluster.spec.etcd.quota());
                let quota = quota.filter(|_| figures.database_bytes.is_some());
                quotas.add_known(of(component, pod), quota.map(|quota| amount(quota.bytes())));
                peers.add_known(of(component, pod), figures.peers.map(amount));
            }
        }
        [sizes, quotas, peers]
    }
}

fn of(component: &Component, pod: &PodName) -> impl Iterator<Item = MetricLabel> {
    clusters::of(&component.spec.cluster).into_iter().chain([("component", pod.component.to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_reported_by_the_machine_of_the_component() {
        let documents = keelway_reconciler::testing::world();
        let figures = |bytes| BTreeMap::from([("0123456789abcdef/etcd-0".parse().unwrap(), bytes)]);
        let holdings = Holdings::default();
        let report = |machine: &str, bytes| {
            let figures = figures(Figures { database_bytes: Some(bytes), ..Figures::default() });
            holdings.0.lock().unwrap().insert(machine.parse().unwrap(), figures);
        };
        report("hv-1", 20 << 20);
        report("hv-2", 10 << 20);
        let [sizes, quotas, peers] = holdings.families(&documents);
        assert_eq!(sizes.lines(), ["namespace=default cluster=c1 component=etcd-0 20971520"]);
        assert_eq!(quotas.lines(), ["namespace=default cluster=c1 component=etcd-0 4294967296"]);
        assert_eq!(peers.samples, []);
        holdings.record_machine(&"hv-1".parse().unwrap(), &ObservedValue::unreachable("it is off"));
        assert_eq!(holdings.families(&documents)[0].samples, []);
    }
}
