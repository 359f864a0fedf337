//! The add-ons that every cluster has on its workers.

use keelway_e2e::worker_fleet::TestCluster;

pub(crate) fn all_are_there(cluster: &TestCluster) {
    let kubectl = &cluster.kubectl;
    for deployment in ["coredns", "metrics-server"] {
        kubectl.wait("condition=Available", &["-n", "kube-system", &format!("deployment/{deployment}")]);
    }
    let all = format!("jsonpath={{.status.numberReady}}={}", cluster.workers.len());
    kubectl.wait(&all, &["-n", "kube-system", "daemonset/kube-proxy"]);
    let addresses = cluster.value("endpointslices/kubernetes", "{.endpoints[*].addresses[*]}:{.ports[*].port}");
    assert_eq!(addresses, "198.19.128.1:6443", "one address that every worker answers on");
}
