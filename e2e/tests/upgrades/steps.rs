//! The commands that a user gives, and what has to run afterwards.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    time::{Duration, Instant},
};

use keelway_api::{release::Release, role::Role};
use keelway_e2e::{
    deadline,
    machine::millis,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{archives::OF_KUBERNETES, phases::PhaseTimes};

/// For an upgrade with all minor versions on the way, and for each command of a rotation.
const LONG: Duration = Duration::from_secs(1200);

/// Upgrades the cluster, and returns how long that took.
pub(crate) fn upgrade(worker_fleet: &WorkerFleet, to: Release) -> Duration {
    worker_fleet.write(&["cluster", "upgrade", "--name", "c1", "--to", &to.to_string()]);
    println!("{}", plan(worker_fleet));
    settle(worker_fleet, &format!("the cluster runs Kubernetes {to}"))
}

pub(crate) fn plan(worker_fleet: &WorkerFleet) -> String {
    worker_fleet.keelway(&["plan"]).succeeded().text().to_owned()
}

/// Reconciles until there is nothing left to do, prints the time of each phase, and returns how long everything took. A run ends after five minutes,
/// and the next one continues.
pub(crate) fn settle(worker_fleet: &WorkerFleet, what: &str) -> Duration {
    let started = Instant::now();
    let phases = RefCell::new(PhaseTimes::after(&worker_fleet.documents()));
    let state = worker_fleet.fleet.keelway.state();
    deadline::until(what, LONG, || {
        let mut phases = phases.borrow_mut();
        let reconciled = phases.follow(&state, || worker_fleet.keelway(&["reconcile"]));
        let is_settled = reconciled.code() == 0;
        worker_fleet.replace_documents(reconciled.stdout);
        if is_settled {
            phases.record(&worker_fleet.documents());
        }
        is_settled
    });
    let took = started.elapsed();
    println!("{}  until {what}", millis(took));
    phases.into_inner().print(took);
    took
}

/// Every component, and the add-ons on workers, are of this release.
pub(crate) fn runs(worker_fleet: &WorkerFleet, cluster: &TestCluster, release: Release) {
    control_plane_runs(worker_fleet, cluster, release);
    add_ons_run(cluster, release);
}

/// Every component that belongs to a release is of this one.
pub(crate) fn control_plane_runs(worker_fleet: &WorkerFleet, cluster: &TestCluster, release: Release) {
    let documents = worker_fleet.documents();
    let status = cluster.document(&documents).status.as_ref().unwrap();
    assert_eq!(status.version.as_deref(), Some(release.to_string().as_str()));
    for role in OF_KUBERNETES {
        assert_eq!(
            images(worker_fleet, cluster, role),
            BTreeSet::from([release.kubernetes_image(role.row().name, None)])
        );
    }
    assert_eq!(images(worker_fleet, cluster, Role::Etcd), BTreeSet::from([release.etcd_image(None)]));
}

fn add_ons_run(cluster: &TestCluster, release: Release) {
    let add_ons = [
        ("daemonset/kube-proxy", release.kubernetes_image("kube-proxy", None)),
        ("deployment/coredns", release.coredns_image(None)),
    ];
    for (add_on, image) in add_ons {
        let path = "jsonpath={.spec.template.spec.containers[*].image}";
        deadline::until(&format!("{add_on} is to run {image}"), deadline::KUBERNETES, || {
            cluster.kubectl.run(&["get", add_on, "--namespace=kube-system", "--output", path]).text() == image
        });
        is_rolled_out(cluster, add_on);
    }
}

/// All pods of an add-on are of its newest template, and ready.
pub(crate) fn is_rolled_out(cluster: &TestCluster, add_on: &str) {
    let status = ["rollout", "status", add_on, "--namespace=kube-system", "--timeout=170s"];
    let _ = cluster.kubectl.run(&status).succeeded();
}

fn images(worker_fleet: &WorkerFleet, cluster: &TestCluster, role: Role) -> BTreeSet<String> {
    worker_fleet.each(cluster, role, |component, machine| machine.of(component).unwrap().image).into_iter().collect()
}

/// Returns the versions of the kubelets.
pub(crate) fn kubelets(cluster: &TestCluster) -> Vec<String> {
    let path = "{.status.nodeInfo.kubeletVersion}";
    cluster.workers.iter().map(|worker| cluster.value(&format!("node/{worker}"), path)).collect()
}

/// The workers upgrade their kubelets in turn: at most one is away at a time.
pub(crate) fn upgrade_workers(worker_fleet: &WorkerFleet, cluster: &TestCluster, to: Release) {
    let started = Instant::now();
    worker_fleet.write(&["cluster", "upgrade", "--name", "c1", "--to", &to.to_string(), "--workers"]);
    worker_fleet.reconcile();
    let wanted = format!("v{to}");
    deadline::until("all kubelets are upgraded", deadline::SETTLE, || {
        let away = cluster.workers.iter().filter(|worker| is_away(cluster, worker)).count();
        assert!(away <= 1, "{away} workers are away");
        kubelets(cluster).iter().all(|version| *version == wanted)
    });
    println!("{}  until all kubelets ran {to}", millis(started.elapsed()));
    cluster.are_ready();
    for worker in cluster.workers {
        let node = format!("node/{worker}");
        deadline::until(&format!("{worker} is uncordoned and has no order"), deadline::KUBERNETES, || {
            let order = cluster.value(&node, "{.metadata.annotations.keelway\\.dev/kubelet-release}");
            order.is_empty() && !is_away(cluster, worker)
        });
    }
}

/// Whether no pod is scheduled on a worker.
fn is_away(cluster: &TestCluster, worker: &str) -> bool {
    cluster.value(&format!("node/{worker}"), "{.spec.unschedulable}") == "true"
}
