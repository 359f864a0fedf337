//! Imports the images of the earlier minor versions. Local hypervisors have those of the newest one from the start.

use std::{collections::BTreeSet, path::PathBuf};

use keelway_api::{
    release::{MINORS, MinorRelease, Release, newest},
    role::Role,
};
use keelway_cri::testing::cache;
use keelway_e2e::worker_fleet::WorkerFleet;
use keelway_machine_io::image;

/// The roles whose image belongs to a release of Kubernetes.
pub(crate) const OF_KUBERNETES: [Role; 3] = [Role::KubeApiserver, Role::KubeControllerManager, Role::KubeScheduler];

/// Imports the images of this release and of those after it. Public machines run components that have the image of no release, in sandboxes of the
/// cluster's release.
pub(crate) fn import_on_hypervisors(worker_fleet: &WorkerFleet, oldest: Release) {
    let of_kubernetes = |release: Release| OF_KUBERNETES.map(|role| release.kubernetes_image(role.row().name, None));
    let private = |release: Release| of_kubernetes(release).into_iter().chain([release.etcd_image(None)]);
    for machine in worker_fleet.fleet.machines() {
        let sandboxes: BTreeSet<String> = earlier(oldest).map(|release| release.pause_image(None)).collect();
        let others: Vec<String> =
            if machine.is_public() { Vec::new() } else { earlier(oldest).flat_map(private).collect() };
        for image in sandboxes.iter().chain(&others) {
            machine.import(&archive(image));
        }
    }
}

pub(crate) fn import_on_worker(worker_fleet: &WorkerFleet, worker: &str, oldest: Release) {
    for release in earlier(oldest) {
        let kube_proxy = release.kubernetes_image("kube-proxy", None);
        for image in [kube_proxy, release.node_image(None), release.coredns_image(None), release.pause_image(None)] {
            worker_fleet.worker(worker).import(&archive(&image));
        }
    }
}

/// Imports what kubeadm needs on a machine to create a control plane of one release, and to upgrade it to the other one.
pub(crate) fn import_for_kubeadm(worker_fleet: &WorkerFleet, worker: &str, releases: [Release; 2]) {
    for release in releases {
        let of_kubernetes = OF_KUBERNETES.map(|role| release.kubernetes_image(role.row().name, None));
        let others = [release.etcd_image(None), release.pause_image(None), release.node_image(None), kubeadm(release)];
        for image in of_kubernetes.iter().chain(&others) {
            worker_fleet.worker(worker).import(&archive(image));
        }
    }
}

/// Returns the image that contains kubeadm.
pub(crate) fn kubeadm(release: Release) -> String {
    release.kubernetes_image("kubeadm", None)
}

fn earlier(oldest: Release) -> impl Iterator<Item = Release> {
    MINORS.iter().map(MinorRelease::newest_tested).filter(move |release| (oldest..newest()).contains(release))
}

/// Returns the archive of an image. Minor versions can share the sandbox image, also with the newest one.
fn archive(image: &str) -> PathBuf {
    let name = image::archive_name(image);
    let [earlier, standard] =
        ["earlier-minors", "images"].map(|directory| cache().unwrap().join(directory).join(&name));
    if earlier.exists() { earlier } else { standard }
}
