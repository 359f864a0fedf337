//! The kubernetes authority was stolen, and is replaced at once while a worker is away. The commands are those of docs/rotation.md.

use std::fs;

use keelway_api::rotation::{RotatedKey, RotationPhase};
use keelway_e2e::{
    Kubectl, deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{WORKERS, steps};

const ROTATE: [&str; 7] = ["cluster", "rotate", "--name", "c1", "--authority", "kubernetes", "--now"];
const GET: [&str; 3] = ["--insecure-skip-tls-verify", "get", "nodes"];
/// What the status of a worker says that did not follow.
const REMEDY: &str = "`keelway node join` with a new token";

/// The worker that is there follows, and its pod continues. The other one is named, and joins again.
pub(crate) fn is_replaced_at_once(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let [(present, _), (absent, _)] = WORKERS;
    let stolen = stolen_kubeconfig(worker_fleet, cluster);
    let kept = format!("on-{present}");
    let container = |cluster: &TestCluster, pod: &str| {
        cluster.value(&format!("pod/{pod}"), "{.status.containerStatuses[0].containerID}")
    };
    let before = container(cluster, &kept);
    let away = worker_fleet.worker(absent);
    away.local("unplug");
    cluster.kubectl.wait("condition=Ready=Unknown", &[&format!("node/{absent}")]);

    let requested = worker_fleet.keelway(&ROTATE).succeeded();
    println!("{}", requested.stderr);
    assert!(requested.stderr.contains("kubeconfig"), "{}", requested.stderr);
    worker_fleet.replace_documents(requested.stdout);
    let _ = steps::settle(worker_fleet, "the stolen authority is replaced");
    let documents = worker_fleet.documents();
    let rotation = cluster.document(&documents).rotation(RotatedKey::KubernetesAuthority).unwrap();
    assert_eq!(rotation.phase, RotationPhase::Completed);
    let left_behind: Vec<&String> = rotation.left_behind.iter().collect();
    assert!(matches!(left_behind[..], [name] if name.ends_with(absent)), "{left_behind:?}");

    let refused = stolen.run(&GET);
    assert!(refused.code() != 0 && refused.stderr.contains("Unauthorized"), "{}", refused.stderr);
    let now = worker_fleet.cluster(cluster.name, cluster.workers);
    now.kubectl.wait("condition=Ready", &[&format!("node/{present}")]);
    deadline::until("the pod can be reached", deadline::KUBERNETES, || now.shell(&kept, "true").code() == 0);
    assert_eq!(container(&now, &kept), before, "a container of a user was restarted");

    away.local("plug");
    deadline::until("the worker says that it has to join", deadline::KUBERNETES, || {
        away.shell("keelway node status || test $? = 1").text().contains(REMEDY)
    });
    let _ = away.run(&["keelway", "node", "forget"], &[]).succeeded();
    let _ = now.kubectl.run(&["delete", "wireguardpeer", absent]).succeeded();
    worker_fleet.join_one(&now, absent, &worker_fleet.token(&now));
    now.kubectl.wait("condition=Ready", &[&format!("node/{absent}")]);
}

/// Returns a client with the certificate of before. It accepts any API server, so that only the API server can refuse it.
fn stolen_kubeconfig(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Kubectl {
    let file = worker_fleet.fleet.keelway.directory().join("stolen.kubeconfig");
    let kubeconfig = worker_fleet.keelway(&["cluster", "kubeconfig", "--name", cluster.name]).succeeded();
    let is_kept = |line: &&str| !line.trim_start().starts_with("certificate-authority-data:");
    fs::write(&file, kubeconfig.text().lines().filter(is_kept).collect::<Vec<_>>().join("\n")).unwrap();
    let stolen = Kubectl::new(&file);
    let _ = stolen.run(&GET).succeeded();
    stolen
}
