//! Ingresses move to other machines with the gateways beside them. Nodes and kubelets of workers stay the same.

use std::collections::BTreeSet;

use keelway_e2e::{
    deadline, outage,
    worker_fleet::{TestCluster, WorkerFleet},
};
use serde_json::Value;

use crate::{
    WORKERS,
    clients::{Clients, Gaps},
    public::{Public, all, all_workers},
};

/// Moves one ingress after the other, each to the machine without an ingress. Returns the cluster with its new endpoints, and the gaps of each move.
pub(crate) fn each_ingress(
    worker_fleet: &WorkerFleet,
    cluster: &TestCluster,
    clients: &Clients,
) -> (TestCluster, Vec<Gaps>) {
    let before = all(worker_fleet, cluster);
    let kept = kept(worker_fleet, cluster);
    let mut gaps = Vec::new();
    for from in &before {
        let began = outage::now();
        worker_fleet.write(&["hypervisor", "drain", &from.machine]);
        worker_fleet.reconcile();
        worker_fleet.write(&["hypervisor", "uncordon", &from.machine]);
        let cluster = worker_fleet.cluster(cluster.name, cluster.workers);
        let now = all(worker_fleet, &cluster);
        assert!(now.iter().all(|public| public.machine != from.machine), "it is still on {}", from.machine);
        let wanted = addresses(&now);
        all_workers(worker_fleet, "workers know the new one and no other", deadline::KUBERNETES, |status| {
            [("ingresses", "address"), ("tunnels", "endpoint")].iter().all(|(list, key)| {
                let known = status[list].as_array().unwrap();
                let at: BTreeSet<String> = known.iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect();
                at == wanted && known.iter().all(|entry| entry["answers"] == true)
            })
        });
        let what = format!("the ingress of {} moved", from.machine);
        gaps.push(clients.went_on(&what, began, &cluster, &[]));
    }
    let cluster = worker_fleet.cluster(cluster.name, cluster.workers);
    assert_eq!(self::kept(worker_fleet, &cluster), kept, "Nodes and kubelets are those of before");
    (cluster, gaps)
}

fn addresses(public: &[Public]) -> BTreeSet<String> {
    public.iter().map(|public| public.address.to_string()).collect()
}

/// Returns the identity of each worker: the uid of its Node and the process of its kubelet.
fn kept(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Vec<(String, Value)> {
    let of = |name: &str| {
        (
            cluster.value(&format!("node/{name}"), "{.metadata.uid}"),
            worker_fleet.worker(name).status()["kubelet"]["pid"].clone(),
        )
    };
    WORKERS.iter().map(|(name, _)| of(name)).collect()
}
