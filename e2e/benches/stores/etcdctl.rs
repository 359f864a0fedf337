//! `etcdctl`, as a person uses it.

use std::{fs, path::PathBuf};

use keelway_api::{Component, role::Role};
use keelway_e2e::{Plane, plane::store::PlaneStore};

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
