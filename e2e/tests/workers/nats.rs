//! NATs that forget, and that get another address.

use std::time::Duration;

use keelway_e2e::{Ran, deadline};

use crate::setting::{Cluster, Setting};

/// A stream of tries, a line with the time for each that was answered.
const TRIES: &str = "while :; do /agnhost connect --timeout=400ms ADDRESS:8080 && echo $EPOCHREALTIME; sleep 0.1; done";
/// Three times what is stated: 5 s from the worker's next packet on, 15 s with no traffic.
const WITH_TRAFFIC: Duration = Duration::from_secs(15);
const SILENT: Duration = Duration::from_secs(45);

pub(crate) fn forget_and_move(setting: &Setting, cluster: &Cluster) {
    let restarts = restarts(cluster);
    let of_w1 = cluster.value("pod/on-w1", "{.status.podIP}");
    // w2 talks all the time; what is behind the NATs of w2 is found again by what it sends.
    let script = TRIES.replace("ADDRESS", &of_w1);
    let manifest = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: prober}}
spec:
  nodeName: w2
  terminationGracePeriodSeconds: 1
  containers: [{{name: prober, image: '{}', command: [/bin/bash, -c, '{script}']}}]
",
        crate::setting::AGNHOST
    );
    cluster.kubectl.apply(&manifest);
    cluster.kubectl.wait("condition=Ready", &["pod/prober"]);
    deadline::until("the prober has an answer", deadline::KUBERNETES, || answers(cluster).len() > 2);
    for (what, command) in [("forgets", "forget"), ("moves", "renumber")] {
        for nat in ["nat-b", "nat-c"] {
            let before = answers(cluster).len();
            let _ = nat_command(setting, command, nat).succeeded();
            deadline::until("an answer after that", SILENT, || answers(cluster).len() > before + 10);
            let gap = longest(&answers(cluster)[before.saturating_sub(1)..]);
            println!("{:>7} ms  {nat} {what}: longest gap", gap.as_millis());
            assert!(gap < WITH_TRAFFIC, "{nat} {what}: {gap:?}");
        }
    }
    // w1 sends nothing by itself but what the cluster asks of it.
    for command in ["forget", "renumber"] {
        let _ = nat_command(setting, command, "nat-a").succeeded();
        let took = deadline::until("logs of a pod on w1", SILENT, || {
            cluster.kubectl.run(&["logs", "on-w1", "--request-timeout=2s"]).code() == 0
        });
        println!("{:>7} ms  nat-a, {command}: until logs are there", took.as_millis());
    }
    let _ = cluster.kubectl.run(&["delete", "pod/prober", "--wait=false"]).succeeded();
    assert_eq!(self::restarts(cluster), restarts, "no pod was restarted");
}

fn nat_command(setting: &Setting, command: &str, nat: &str) -> Ran {
    setting.world.keelway.run(&["node", "local", command, "--fleet", &setting.world.fleet, nat], &[])
}

/// When there were answers, in seconds.
fn answers(cluster: &Cluster) -> Vec<f64> {
    let said = cluster.kubectl.run(&["logs", "prober", "--request-timeout=5s"]);
    if said.code() != 0 {
        return Vec::new();
    }
    said.text().lines().filter_map(|line| line.replace(',', ".").parse().ok()).collect()
}

fn longest(answers: &[f64]) -> Duration {
    let gaps = answers.windows(2).map(|pair| pair[1] - pair[0]);
    Duration::from_secs_f64(gaps.fold(0.0, f64::max))
}

/// Pods and how often each was restarted.
fn restarts(cluster: &Cluster) -> Vec<String> {
    let path = "{range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{\"\\n\"}{end}";
    let said = cluster.kubectl.run(&["get", "pods", "-A", "-o", &format!("jsonpath={path}")]).succeeded();
    said.text().lines().filter(|line| !line.starts_with("prober")).map(str::to_owned).collect()
}
