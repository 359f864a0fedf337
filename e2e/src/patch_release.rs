//! Another patch release of the newest minor version. Its images are those of the newest release under other tags.

use std::process::Command;

use keelway_api::{
    release::{Release, newest},
    role::Role,
};
use keelway_cri::testing::cache;

use crate::{TestMachine, command::run, deadline};

/// The roles whose image belongs to a patch release.
pub const PATCHED_ROLES: [Role; 3] = [Role::KubeApiserver, Role::KubeControllerManager, Role::KubeScheduler];

/// Returns the newest release, and the other patch release.
pub fn patch_releases() -> (Release, Release) {
    let before = newest();
    (before, Release { patch: before.patch + 1, ..before })
}

/// Gives the images of one release on a machine the tags of another one as well.
pub fn tag_patched_images(machine: &TestMachine, before: Release, after: Release) {
    for role in PATCHED_ROLES {
        let name = role.row().name;
        let mut ctr = Command::new(cache().unwrap().join("bin/ctr"));
        ctr.arg("--address").arg(machine.socket()).args(["--namespace=k8s.io", "images", "tag"]);
        ctr.args([before, after].map(|release| release.kubernetes_image(name, None)));
        let _ = run(&mut ctr, &[], deadline::READ).succeeded();
    }
}
