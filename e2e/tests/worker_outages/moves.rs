//! Ingresses that move to other machines, with the gateways beside them: workers stay what they are.

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

/// One after the other, each to the machine that has none. Returns the cluster, as its clients reach it then, and what
/// each move was for them.
pub(crate) fn each_ingress(
    setting: &WorkerFleet,
    cluster: &TestCluster,
    clients: &Clients,
) -> (TestCluster, Vec<Gaps>) {
    let before = all(setting, cluster);
    let kept = kept(setting, cluster);
    let mut gaps = Vec::new();
    for from in &before {
        let began = outage::now();
        setting.write(&["hypervisor", "drain", &from.machine]);
        setting.reconcile();
        setting.write(&["hypervisor", "uncordon", &from.machine]);
        let cluster = setting.cluster(cluster.name, cluster.workers);
        let now = all(setting, &cluster);
        assert!(now.iter().all(|public| public.machine != from.machine), "it is still on {}", from.machine);
        let wanted = addresses(&now);
        all_workers(setting, "workers know the new one and no other", deadline::KUBERNETES, |status| {
            [("ingresses", "address"), ("tunnels", "endpoint")].iter().all(|(list, key)| {
                let known = status[list].as_array().unwrap();
                let at: BTreeSet<String> = known.iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect();
                at == wanted && known.iter().all(|entry| entry["answers"] == true)
            })
        });
        let what = format!("the ingress of {} moved", from.machine);
        gaps.push(clients.went_on(&what, began, &cluster, &[]));
    }
    let cluster = setting.cluster(cluster.name, cluster.workers);
    assert_eq!(self::kept(setting, &cluster), kept, "Nodes and kubelets are those of before");
    (cluster, gaps)
}

fn addresses(public: &[Public]) -> BTreeSet<String> {
    public.iter().map(|public| public.address.to_string()).collect()
}

/// What a worker is: its Node, and the kubelet's process.
fn kept(setting: &WorkerFleet, cluster: &TestCluster) -> Vec<(String, Value)> {
    let of = |name: &str| {
        (
            cluster.value(&format!("node/{name}"), "{.metadata.uid}"),
            setting.worker(name).status()["kubelet"]["pid"].clone(),
        )
    };
    WORKERS.iter().map(|(name, _)| of(name)).collect()
}
