//! A highly available cluster with two workers is upgraded from the oldest supported minor version of Kubernetes to the newest, and then each of its
//! keys and authorities is rotated, while clients send requests. No request fails, and no pod of a user is restarted. Another test compares upgrades
//! with those of kubeadm.
//!
//! They need what the tests of `workers` need, and the images of `cargo xtask images --earlier-minors`. `make upgrades` builds them and runs both, one
//! after the other.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod api_pod;
mod archives;
mod kubeadm;
mod phases;
mod preflight;
mod rotations;
mod sessions;
mod steps;
mod stolen;

use keelway_api::release::{self, MINORS, MinorRelease};
use keelway_e2e::{
    host::on_own_host,
    load::Load,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::sessions::Sessions;

/// Machines for workers, each with the NAT that it is behind.
const WORKERS: [(&str, &str); 2] = [("w1", "nat-1"), ("w2", "nat-2")];

#[test]
#[ignore = "long: it needs the images of every supported minor version"]
fn no_request_fails_from_the_oldest_minor_version_to_the_newest() {
    on_own_host("no_request_fails_from_the_oldest_minor_version_to_the_newest", || scenario("e2emin"));
}

#[test]
#[ignore = "long: it needs kubeadm, and the images of the second newest minor version"]
fn an_upgrade_beside_kubeadm() {
    on_own_host("an_upgrade_beside_kubeadm", || kubeadm::compare("e2eadm"));
}

fn scenario(tag: &str) {
    let [oldest, next, ..] = MINORS.each_ref().map(MinorRelease::newest_tested);
    let worker_fleet = WorkerFleet::with_private(tag, "2", "3");
    archives::import_on_hypervisors(&worker_fleet, oldest);
    for (worker, nat) in WORKERS {
        worker_fleet.create_worker(worker, nat);
        archives::import_on_worker(&worker_fleet, worker, oldest);
    }
    let version = oldest.to_string();
    let replicas = ["--etcd-replicas", "3", "--control-plane-replicas", "2", "--version", &version];
    worker_fleet.inject("c1", &replicas);
    worker_fleet.reconcile();
    let cluster = worker_fleet.cluster("c1", &["w1", "w2"]);
    worker_fleet.join(&[&cluster]);
    cluster.start_peers();
    cluster.kubectl.wait("condition=Available", &["--namespace", "kube-system", "deployment/coredns"]);
    let running = containers(&cluster);
    preflight::finds_a_silent_webhook(&worker_fleet, &cluster, next);

    // To the next minor version, and then to the newest one, with the minor version between them on the way.
    for to in [next, release::newest()] {
        let load = Load::start(&cluster.kubectl);
        let sessions = Sessions::start(&cluster.kubectl, "on-w1");
        let _ = steps::upgrade(&worker_fleet, to);
        let (sessions, load) = (sessions.end(), load.end());
        sessions.assert_good();
        load.assert_good();
        assert_eq!(load.relists, 0, "a watch that begins anew gets no event of what was written meanwhile");
        assert_eq!(containers(&cluster), running, "a container of a user was restarted");
        steps::runs(&worker_fleet, &cluster, to);
        assert_eq!(steps::kubelets(&cluster), [&oldest, &oldest].map(|kubelet| format!("v{kubelet}")));
    }
    steps::upgrade_workers(&worker_fleet, &cluster, release::newest());

    // The workers were drained.
    cluster.start_peers();
    rotations::rotate_each(&worker_fleet, &cluster);
    let cluster = worker_fleet.cluster(cluster.name, cluster.workers);
    stolen::is_replaced_at_once(&worker_fleet, &cluster);
}

/// Returns the containers of the user's pods.
pub(crate) fn containers(cluster: &TestCluster) -> String {
    let path = "jsonpath={range .items[*]}{.status.containerStatuses[*].containerID} {end}";
    cluster.kubectl.run(&["get", "pods", "--selector=app=peer", "--output", path]).succeeded().text().to_owned()
}
