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

/// Public machines run components that have the image of no release, in sandboxes of the cluster's release.
pub(crate) fn import_on_hypervisors(worker_fleet: &WorkerFleet) {
    let of_kubernetes = |release: Release| OF_KUBERNETES.map(|role| release.kubernetes_image(role.row().name, None));
    let private = |release: Release| of_kubernetes(release).into_iter().chain([release.etcd_image(None)]);
    for machine in worker_fleet.fleet.machines() {
        let sandboxes: BTreeSet<String> = earlier().map(|release| release.pause_image(None)).collect();
        let others: Vec<String> = if machine.is_public() { Vec::new() } else { earlier().flat_map(private).collect() };
        for image in sandboxes.iter().chain(&others) {
            machine.import(&archive(image));
        }
    }
}

pub(crate) fn import_on_worker(worker_fleet: &WorkerFleet, worker: &str) {
    for release in earlier() {
        let kube_proxy = release.kubernetes_image("kube-proxy", None);
        for image in [kube_proxy, release.node_image(None), release.coredns_image(None), release.pause_image(None)] {
            worker_fleet.worker(worker).import(&archive(&image));
        }
    }
}

fn earlier() -> impl Iterator<Item = Release> {
    MINORS.iter().map(MinorRelease::newest_tested).filter(|release| *release < newest())
}

/// Returns the archive of an image. Minor versions can share the sandbox image, also with the newest one.
fn archive(image: &str) -> PathBuf {
    let name = image::archive_name(image);
    let [earlier, standard] =
        ["earlier-minors", "images"].map(|directory| cache().unwrap().join(directory).join(&name));
    if earlier.exists() { earlier } else { standard }
}
