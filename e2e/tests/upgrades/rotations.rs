//! Every key and every authority is rotated, one after the other, with the commands of docs/rotation.md.

use std::time::Duration;

use keelway_api::rotation::{RotatedKey, RotationPhase};
use keelway_e2e::{
    load::{Load, Report},
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{
    api_pod, containers,
    sessions::{SessionReport, Sessions},
    steps,
};

/// API servers publish authorities in it, and remove none.
const PUBLISHED: [&str; 4] = ["configmap", "extension-apiserver-authentication", "--namespace", "kube-system"];
/// Add-ons that read the kubernetes authority when they start.
const ADD_ONS: [&str; 3] = ["daemonset/kube-proxy", "deployment/coredns", "deployment/metrics-server"];

/// One command of a rotation, and what clients saw until everything was done.
struct RotationStep {
    key: RotatedKey,
    phase: RotationPhase,
    took: Duration,
    load: Report,
    sessions: SessionReport,
}

/// All rotations are measured before any of them can fail the test.
pub(crate) fn rotate_each(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let running = containers(cluster);
    let mut steps = Vec::new();
    for key in RotatedKey::ALL {
        if key == RotatedKey::KubernetesAuthority {
            api_pod::start(cluster);
        }
        steps.push(RotationStep::run(worker_fleet, cluster, key, RotationPhase::Prepared));
        if key == RotatedKey::KubernetesAuthority {
            api_pod::trusts_both(cluster);
            for add_on in ADD_ONS {
                steps::is_rolled_out(cluster, add_on);
            }
        }
        steps.push(RotationStep::run(worker_fleet, cluster, key, RotationPhase::Completed));
        if matches!(key, RotatedKey::FrontProxyAuthority | RotatedKey::KubernetesAuthority) {
            let _ = cluster.kubectl.run(&[&["delete"], &PUBLISHED[..]].concat()).succeeded();
        }
    }
    print(&steps);
    api_pod::was_always_trusted(cluster);
    steps.iter().for_each(RotationStep::assert_good);
    assert_eq!(containers(cluster), running, "a container of a user was restarted");
}

fn print(steps: &[RotationStep]) {
    let of_clients = "Requests | Failed | Longest request | Longest silence of the watch";
    println!("| Key | Until | Time | {of_clients} | Sessions | Failed | Longest time without session |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for step in steps {
        println!("{}", step.row());
    }
}

impl RotationStep {
    /// Each command has clients of its own. They use a kubeconfig that was written before it: one from before `Prepared` ends when the rotation of the
    /// kubernetes authority is completed.
    fn run(worker_fleet: &WorkerFleet, cluster: &TestCluster, key: RotatedKey, phase: RotationPhase) -> Self {
        let kubectl = worker_fleet.cluster(cluster.name, cluster.workers).kubectl;
        let (load, sessions) = (Load::start(&kubectl), Sessions::start(&kubectl, "on-w1"));
        let rotate = ["cluster", "rotate", "--name", cluster.name];
        let complete = (phase == RotationPhase::Completed).then_some("--complete");
        let command: Vec<&str> = rotate.into_iter().chain(key.flag().split(' ')).chain(complete).collect();
        worker_fleet.write(&command);
        let took = steps::settle(worker_fleet, &format!("the rotation of the {key} is {phase:?}"));
        let (sessions, load) = (sessions.end(), load.end());
        let documents = worker_fleet.documents();
        assert_eq!(cluster.document(&documents).rotation(key).unwrap().phase, phase);
        Self { key, phase, took, load, sessions }
    }

    fn row(&self) -> String {
        let Self { key, phase, took, load, sessions } = self;
        let [longest, silence] = [load.longest, load.longest_silence].map(|time| time.as_millis());
        format!(
            "| {key} | {phase:?} | {:.0} s | {} | {} | {longest} ms | {silence} ms | {} |",
            took.as_secs_f64(),
            load.requests,
            load.failures.len(),
            sessions.cells()
        )
    }

    /// No request fails. A session may fail while the kubelet restarts, which it does for the authority of its certificates.
    fn assert_good(&self) {
        self.load.assert_good();
        assert_eq!(self.load.relists, 0, "a watch that begins anew gets no event of what was written meanwhile");
        if self.key == RotatedKey::KubernetesAuthority {
            self.sessions.print_failures();
        } else {
            self.sessions.assert_good();
        }
    }
}
