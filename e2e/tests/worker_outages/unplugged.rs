//! A worker whose cable is unplugged. Kubernetes moves its pods, and the worker is ready again once it is plugged in.

use std::time::Instant;

use keelway_e2e::{
    deadline,
    worker_fleet::{AGNHOST, TestCluster, WorkerFleet},
};

use crate::THIRD;

/// The pod prefers the worker. It tolerates an unreachable worker for two seconds only.
const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: moves}
spec:
  selector: {matchLabels: {app: moves}}
  template:
    metadata: {labels: {app: moves}}
    spec:
      terminationGracePeriodSeconds: 1
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [WORKER]}]}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      containers: [{name: serves, image: 'IMAGE', args: [netexec, --http-port=8080]}]
";

/// The time at which the worker was unplugged.
pub(crate) struct Unplugged(Instant);

/// Unplugs a worker that runs a pod.
pub(crate) fn begins(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Unplugged {
    cluster.kubectl.apply(&DEPLOYMENT.replace("WORKER", THIRD).replace("IMAGE", AGNHOST));
    cluster.kubectl.wait("condition=Available", &["deployment/moves"]);
    assert_eq!(pods(cluster), [(THIRD.to_owned(), true)]);
    worker_fleet.worker(THIRD).local("unplug");
    Unplugged(Instant::now())
}

impl Unplugged {
    /// Waits until the pod has moved, and plugs the worker in.
    pub(crate) fn ends(self, worker_fleet: &WorkerFleet, cluster: &TestCluster) {
        let node = format!("node/{THIRD}");
        cluster.kubectl.wait("condition=Ready=Unknown", &[&node]);
        println!("{:>7} ms  from unplugged to NotReady", self.0.elapsed().as_millis());
        deadline::until("it is tainted as unreachable", deadline::KUBERNETES, || {
            cluster.value(&node, "{.spec.taints[*].key}").contains("node.kubernetes.io/unreachable")
        });
        deadline::until("the pod is elsewhere, too", deadline::KUBERNETES, || {
            pods(cluster).iter().any(|(worker, is_ready)| worker != THIRD && *is_ready)
        });
        println!("{:>7} ms  from unplugged until its pod runs elsewhere", self.0.elapsed().as_millis());

        worker_fleet.worker(THIRD).local("plug");
        let plugged = Instant::now();
        cluster.kubectl.wait("condition=Ready", &[&node]);
        println!("{:>7} ms  from plugged in to Ready", plugged.elapsed().as_millis());
        deadline::until("the pod of before is gone", deadline::KUBERNETES, || pods(cluster).len() == 1);
        println!("{:>7} ms  from plugged in until its pod of before is gone", plugged.elapsed().as_millis());
        assert_ne!(pods(cluster)[0].0, THIRD);
    }
}

/// Returns the worker of each pod of the deployment, and whether the pod is ready.
fn pods(cluster: &TestCluster) -> Vec<(String, bool)> {
    let pods = cluster.kubectl.get(&["pods", "-l", "app=moves"]);
    let mut found = Vec::new();
    for pod in pods["items"].as_array().unwrap() {
        let conditions = pod["status"]["conditions"].as_array();
        let is_ready = |condition: &serde_json::Value| condition["type"] == "Ready" && condition["status"] == "True";
        let worker = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        found.push((worker, conditions.into_iter().flatten().any(is_ready)));
    }
    found
}
