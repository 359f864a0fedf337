//! What Keelway does.

use std::{fs, time::Instant};

use keelway_api::{duration::Span, snapshots::SnapshotsSpec};
use keelway_e2e::{Plane, deadline, plane::store::PlaneStore, process};
use serde_json::json;

use crate::{
    etcdctl::{fill, follower},
    peers::PeerView,
};

/// Configures snapshots and immediate replacement, and fills the database.
pub(crate) fn prepare(plane: &mut Plane<'_>, mebibytes: usize) {
    let sink = plane.keelway.directory().join("nobody/snapshots");
    let spec = json!({"retention": {"keep": 1}, "sink": {"directory": {"path": sink}}, "schedule": ""});
    let snapshots: SnapshotsSpec = serde_json::from_value(spec).unwrap();
    plane.reconcile(|spec| {
        spec.etcd.snapshots = Some(snapshots);
        spec.etcd.replace_after = Some(Span::of_seconds(0));
    });
    let store = PlaneStore::of(plane);
    let client = store.client(&store.endpoint(store.leader()));
    fill(plane.machine(store.leader()), &client, plane.keelway.directory(), mebibytes);
}

/// A follower loses its process and its data. Returns the seconds until another member is a voter, and until `reconcile` ended.
pub(crate) fn replace(plane: &mut Plane<'_>) -> (f64, f64) {
    let lost = follower(plane);
    let (name, machine) = (lost.spec.name().unwrap().to_string(), plane.machine(&lost));
    let pid = machine.container_pid(&plane.running(&lost).unwrap().container);
    for entry in fs::read_dir(plane.directory(&lost, "data")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }
    process::kill(pid);
    let through = PeerView::of(plane, PlaneStore::of(plane).leader());
    let started = Instant::now();
    let running = plane.keelway.start(&["reconcile"], &plane.text);
    deadline::until("another member is a voter", deadline::KUBERNETES, || {
        through.voters().is_some_and(|voters| voters.len() == 3 && !voters.contains(&name))
    });
    let replaced = started.elapsed();
    let ran = plane.keelway.end(running).succeeded();
    plane.take(ran.stdout);
    (replaced.as_secs_f64(), ran.took.as_secs_f64())
}

/// Returns the seconds that a snapshot takes.
pub(crate) fn save(plane: &Plane<'_>) -> f64 {
    plane.keelway.run(&["snapshot", "create", "c1"], &plane.text).succeeded().took.as_secs_f64()
}
