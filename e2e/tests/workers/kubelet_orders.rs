//! On Nodes, a cluster-controller may change the orders to upgrade kubelets, and nothing else.

use keelway_e2e::worker_fleet::TestCluster;

const AS: &str = "--as=keelway:cluster-controller";

pub(crate) fn are_all_it_may_change(cluster: &TestCluster) {
    for change in [
        &["label", "node", "w1", "tier=any"][..],
        &["annotate", "node", "w1", "example.com/any=1"],
        &["annotate", "node", "w1", "keelway.dev/trusted-authorities-"],
        &["taint", "node", "w1", "tier=any:NoSchedule"],
        &["patch", "node", "w1", "--patch", r#"{"spec": {"unschedulable": true}}"#],
    ] {
        let refused = cluster.kubectl.run(&[change, &[AS]].concat());
        assert!(refused.code() != 0, "{change:?}: {}", refused.text());
        assert!(refused.stderr.contains("keelway-kubelet-orders"), "{change:?}: {}", refused.stderr);
    }
    // An order needs a time limit for draining, too: the worker ignores half of one.
    for release in ["keelway.dev/kubelet-release=1.37.0", "keelway.dev/kubelet-release-"] {
        let _ = cluster.kubectl.run(&["annotate", "node", "w1", release, AS]).succeeded();
    }
}
