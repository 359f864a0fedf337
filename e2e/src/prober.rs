//! A pod that connects to another pod continuously.

use crate::{
    Kubectl, deadline,
    worker_fleet::{AGNHOST, TestCluster},
};

/// The script prints the time after each successful attempt.
const TRIES: &str = "while :; do /agnhost connect --timeout=400ms ADDRESS:8080 && echo $EPOCHREALTIME; sleep 0.1; done";

/// The pod, identified by its name.
pub struct Prober(String);

impl Prober {
    /// Starts the pod on a worker, and waits for its first successful attempt.
    pub fn start(cluster: &TestCluster, name: &str, worker: &str, address: &str) -> Self {
        let script = TRIES.replace("ADDRESS", address);
        let pod = format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {worker}
  terminationGracePeriodSeconds: 1
  containers: [{{name: prober, image: '{AGNHOST}', command: [/bin/bash, -c, '{script}']}}]
"
        );
        cluster.kubectl.apply(&pod);
        cluster.kubectl.wait("condition=Ready", &[&format!("pod/{name}")]);
        let prober = Self(name.to_owned());
        deadline::until(&format!("{name} has an answer"), deadline::KUBERNETES, || {
            !prober.answers(&cluster.kubectl).is_empty()
        });
        prober
    }

    /// Returns the name of the pod.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Returns the times of successful attempts, in seconds since the Unix epoch. The result is empty if the log cannot be read.
    pub fn answers(&self, kubectl: &Kubectl) -> Vec<f64> {
        let logs = kubectl.run(&["logs", &self.0, "--request-timeout=5s"]);
        if logs.code() != 0 {
            return Vec::new();
        }
        logs.text().lines().filter_map(|line| line.replace(',', ".").parse().ok()).collect()
    }

    /// Deletes the pod.
    pub fn end(&self, kubectl: &Kubectl) {
        let _ = kubectl.run(&["delete", "pod", &self.0, "--wait=false"]).succeeded();
    }
}
