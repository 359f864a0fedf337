//! `etcdctl`, as a person uses it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use keelway_api::{Component, role::Role};
use keelway_e2e::{
    Plane, TestMachine,
    plane::store::{self, PlaneStore},
};

/// Writes this many MiB.
pub(crate) fn fill(machine: &TestMachine, client: &Command, directory: &Path, mebibytes: usize) {
    let _ = store::fill(machine, client, directory, 0..mebibytes).succeeded();
}

/// Saves a snapshot of a follower. Returns the time in seconds.
pub(crate) fn save(plane: &Plane<'_>) -> f64 {
    let store = PlaneStore::of(plane);
    let member = follower(plane);
    let file: PathBuf = plane.keelway.directory().join("by-hand.db");
    let mut command = store.client(&store.endpoint(&member));
    let took = plane.machine(&member).run(command.args(["snapshot", "save"]).arg(&file)).succeeded().took;
    fs::remove_file(file).unwrap();
    took.as_secs_f64()
}

/// Returns a member that does not lead.
pub(crate) fn follower(plane: &Plane<'_>) -> Component {
    let leader = PlaneStore::of(plane).leader().spec.name().unwrap();
    let mut members = plane.of_role(Role::Etcd).into_iter();
    members.find(|member| member.spec.name().unwrap() != leader).unwrap().clone()
}
