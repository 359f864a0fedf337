//! Snapshots of a real cluster in a directory.

use std::{
    fs,
    io::{Cursor, Read},
    path::Path,
    process::Command,
};

use keelway_api::{
    Cluster, Documents,
    documents::SecretName,
    snapshots::{SNAPSHOT_SECRET, SnapshotsSpec},
};
use keelway_cri::testing::cache;
use keelway_e2e::TestControlPlane;
use keelway_snapshot::SealingKey;
use serde_json::{Value, json};

use crate::life;

/// A value of a Secret.
const PLAIN: &str = "nobody-may-read-this";

/// A snapshot holds what the API stores. It is listed and deleted by its name, and `reconcile` takes the one that is due.
pub(crate) fn are_taken<'a>(plane: &TestControlPlane<'a>) -> TestControlPlane<'a> {
    let sink = plane.keelway.directory().join("snapshots");
    let spec = json!({"retention": {"keep": 2}, "sink": {"directory": {"path": sink}}, "schedule": ""});
    let spec: SnapshotsSpec = serde_json::from_value(spec).unwrap();
    let plane = life::changed(plane, |cluster| cluster.etcd.snapshots = Some(spec));

    let literal = format!("--from-literal=of={PLAIN}");
    let _ = plane.kubectl.run(&["create", "secret", "generic", "in-snapshot", &literal]).succeeded();
    let created = plane.keelway.run(&["snapshot", "create", "c1"], &plane.text).succeeded();
    let name = created.text().trim();
    let from = created.stderr.strip_prefix("took the snapshot from etcd-").map(|rest| &rest[..1]);
    assert!(from.is_some(), "{}", created.stderr);
    is_a_whole_database(&plane, &sink, name);
    is_deleted_by_name(&plane, name);
    reconcile_takes_what_is_due(&plane)
}

fn list(plane: &TestControlPlane<'_>) -> Vec<Value> {
    let listed = plane.keelway.run(&["snapshot", "list", "c1", "-o", "json"], &plane.text).succeeded();
    listed.json()["items"].as_array().unwrap().clone()
}

/// Opens the sealed file with the key of the documents, as `age` does, and compares the manifest with `etcdutl`.
fn is_a_whole_database(plane: &TestControlPlane<'_>, sink: &Path, name: &str) {
    let listed = list(plane);
    assert_eq!((listed.len(), listed[0]["metadata"]["name"].as_str()), (1, Some(name)));
    let id = cluster(&plane.documents).id().unwrap();
    let key = &plane.documents.secrets[&SecretName::of(id, SNAPSHOT_SECRET)].data.as_ref().unwrap()["active.key"];
    let key = SealingKey::from_bytes(&key.0).unwrap();
    let shown = plane.keelway.run(&["snapshot", "key", "c1"], &plane.text).succeeded();
    assert_eq!(shown.text().trim(), *key.expose_text());
    let sealed = fs::read(sink.join(format!("default/c1/{id}/{name}.db.age"))).unwrap();
    let mut database = Vec::new();
    key.open(Cursor::new(sealed)).unwrap().read_to_end(&mut database).unwrap();
    let has = |text: &[u8]| database.windows(text.len()).any(|bytes| bytes == text);
    assert!(has(b"/registry/secrets/default/in-snapshot"));
    assert!(!has(PLAIN.as_bytes()), "Secrets are encrypted in a snapshot, too");
    let keys = listed[0]["status"]["versions"]["encryptionKeys"].as_array().unwrap();
    assert!(!keys.is_empty(), "a restore needs the keys of Secrets");
    let file = plane.keelway.directory().join("c1.db");
    fs::write(&file, database).unwrap();
    let etcdutl = cache().unwrap().join("bin/etcdutl");
    let finished = Command::new(etcdutl).args(["snapshot", "status", "-w", "json"]).arg(file).output().unwrap();
    let status: Value = serde_json::from_slice(&finished.stdout).unwrap();
    let found = &listed[0]["status"]["database"];
    for (own, theirs) in
        [("hash", "hash"), ("revision", "revision"), ("totalSize", "totalSize"), ("version", "version")]
    {
        assert_eq!(found[own], status[theirs], "{own}");
    }
}

fn is_deleted_by_name(plane: &TestControlPlane<'_>, name: &str) {
    let unknown = plane.keelway.run(&["snapshot", "delete", "c1", name, "20200101T000000Z-1"], &plane.text);
    assert!(unknown.code() == 2 && unknown.stderr.contains(name), "{}", unknown.stderr);
    assert_eq!(list(plane).len(), 1, "nothing is deleted if one name is unknown");
    let deleted = plane.keelway.run(&["snapshot", "delete", "c1", name], &plane.text).succeeded();
    assert_eq!(deleted.stderr, format!("deleted snapshot {name} of cluster c1\n"));
    assert!(list(plane).is_empty());
}

/// The cluster is made years older, so that a time of its schedule has passed.
fn reconcile_takes_what_is_due<'a>(plane: &TestControlPlane<'a>) -> TestControlPlane<'a> {
    let mut documents = plane.documents.clone();
    let cluster_before = documents.clusters.values_mut().next().unwrap();
    "0 0 1 1 *".clone_into(&mut cluster_before.spec.etcd.snapshots.as_mut().unwrap().schedule);
    let store = cluster_before.status.as_mut().unwrap().etcd.as_mut().unwrap();
    store.born_at.0 = "2020-06-01T00:00:00Z".parse().unwrap();
    let text = plane.keelway.run(&["reconcile"], documents.write().as_bytes()).succeeded().stdout;
    let after = life::with_kubeconfig(plane.keelway, text);
    let taken = cluster(&after.documents).status.as_ref().unwrap().etcd.as_ref().unwrap().snapshots.clone().unwrap();
    let listed = list(&after);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["metadata"]["name"].as_str(), taken.last.as_ref().map(|last| last.name.as_str()));
    assert_eq!(taken.failure, None);
    after
}

fn cluster(documents: &Documents) -> &Cluster {
    documents.clusters.values().next().unwrap()
}
