//! Ingresses that move to other machines, with the gateways beside them: workers stay what they are.

use std::collections::BTreeSet;

use keelway_e2e::{
    deadline, gap,
    setting::{Cluster, Setting},
};
use serde_json::Value;

use crate::{
    WORKERS,
    clients::Clients,
    public::{BACK, Public, all, all_workers},
};

/// One after the other, each to the machine that has none. Returns the cluster, as its clients reach it then.
pub(crate) fn each_ingress(setting: &Setting, cluster: &Cluster, clients: &Clients) -> Cluster {
    let before = all(setting, cluster);
    let kept = kept(setting, cluster);
    for from in &before {
        let began = gap::now();
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
        clients.went_on(&format!("the ingress of {} moved", from.machine), began, BACK, &cluster, &[]);
    }
    let cluster = setting.cluster(cluster.name, cluster.workers);
    assert_eq!(self::kept(setting, &cluster), kept, "Nodes and kubelets are those of before");
    cluster
}

fn addresses(public: &[Public]) -> BTreeSet<String> {
    public.iter().map(|public| public.address.to_string()).collect()
}

/// What a worker is: its Node, and the kubelet's process.
fn kept(setting: &Setting, cluster: &Cluster) -> Vec<(String, Value)> {
    let of = |name: &str| {
        (
            cluster.value(&format!("node/{name}"), "{.metadata.uid}"),
            setting.worker(name).status()["kubelet"]["pid"].clone(),
        )
    };
    WORKERS.iter().map(|(name, _)| of(name)).collect()
}
