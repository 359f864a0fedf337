//! Snapshots that a manager takes on schedule, in a real S3-compatible store.

use std::fs;

use keelway_api::snapshots::{SnapshotStatus, SnapshotsStatus};
use keelway_e2e::{TestControlPlane, deadline, host, machine::millis, manager::Manager};

use self::store::{BUCKET, S3Store};

#[path = "../../../lib/snapshot/tests/real_s3/store.rs"]
mod store;

const CLUSTER: &str = "clusters/default/c1.yaml";
const PREFIX: &str = "keelway/live";

/// The manager takes the snapshot that is due. The command line lists it, takes another one, and deletes that one.
pub(crate) fn snapshots_are_taken(manager: &Manager, plane: &TestControlPlane<'_>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(S3Store::start(&host::directory("s3")));
    let before = manager.read(CLUSTER).unwrap();
    manager.write("secrets/default/backup-store.yaml", &secret(&store));
    manager.write(CLUSTER, &with_snapshots(&before, &store, "* * * * *"));
    let taken = deadline::until("a snapshot is taken", deadline::KUBERNETES, || status(manager).last.is_some());
    println!("{}  until the manager took a snapshot", millis(taken));
    assert_eq!(status(manager).failure, None);
    // The status stays.
    manager.write(CLUSTER, &manager.read(CLUSTER).unwrap().replace("* * * * *", ""));
    deadline::until("the schedule ends", deadline::READ, || is_without_schedule(manager));
    let last = std::cell::RefCell::new(None);
    deadline::until("the status has the snapshot", deadline::READ, || {
        last.replace(status(manager).last);
        last.borrow().is_some()
    });
    is_stored(manager, plane, &store, &last.take().unwrap());
    the_command_line_uses_the_store(manager, plane);
}

fn secret(store: &S3Store) -> String {
    let credentials = store.credentials();
    let authorities = String::from_utf8(credentials.authorities.unwrap()).unwrap().replace('\n', "\n    ");
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: backup-store, namespace: default}}\nstringData:\n  accessKeyID: {}\n  \
         secretAccessKey: {}\n  ca.crt: |\n    {authorities}\n",
        credentials.access_key_id, credentials.secret_access_key
    )
}

fn with_snapshots(cluster: &str, store: &S3Store, schedule: &str) -> String {
    let sink = format!(
        "s3: {{endpoint: '{}', bucket: {BUCKET}, prefix: {PREFIX}, credentialsSecret: {{name: backup-store}}}}",
        store.endpoint()
    );
    let spec = format!("  etcd:\n    snapshots: {{schedule: '{schedule}', sink: {{{sink}}}}}\n");
    assert!(cluster.contains("\n  etcd:\n"), "{cluster}");
    cluster.replacen("  etcd:\n", &spec, 1)
}

fn status(manager: &Manager) -> SnapshotsStatus {
    let found = manager.documents().and_then(|documents| {
        let cluster = documents.clusters.values().next()?.clone();
        cluster.status.as_ref()?.etcd.as_ref()?.snapshots.clone()
    });
    found.unwrap_or_default()
}

fn is_without_schedule(manager: &Manager) -> bool {
    let found = manager.documents().and_then(|documents| {
        let cluster = documents.clusters.values().next()?.clone();
        Some(cluster.spec.etcd.snapshots.as_ref()?.schedule.is_empty())
    });
    found.unwrap_or_default()
}

/// Returns the names of the snapshots. The command line needs the keys of the documents, as the manager stores them.
fn listed(text: &str, plane: &TestControlPlane<'_>) -> Vec<String> {
    let listed = plane.keelway.run(&["snapshot", "list", "c1", "-o", "json"], text.as_bytes()).succeeded();
    let items = listed.json()["items"].as_array().unwrap().clone();
    items.iter().map(|snapshot| snapshot["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn is_stored(manager: &Manager, plane: &TestControlPlane<'_>, store: &S3Store, last: &SnapshotStatus) {
    let text = manager.documents().unwrap().write();
    assert!(listed(&text, plane).contains(&last.name));
    let below = store.bucket().join(PREFIX).join("default/c1");
    let of_cluster = fs::read_dir(below).unwrap().next().unwrap().unwrap().path();
    assert!(of_cluster.join(format!("{}.db.age", last.name)).exists());
    let sample = "keelway_cluster_snapshot_size_bytes{namespace=\"default\",cluster=\"c1\"}";
    deadline::until("the size is in the metrics", deadline::READ, || manager.figure(sample).is_some());
}

fn the_command_line_uses_the_store(manager: &Manager, plane: &TestControlPlane<'_>) {
    let text = manager.documents().unwrap().write();
    let created = plane.keelway.run(&["snapshot", "create", "c1"], text.as_bytes()).succeeded();
    let name = created.text().trim().to_owned();
    assert!(listed(&text, plane).contains(&name));
    let _ = plane.keelway.run(&["snapshot", "delete", "c1", &name], text.as_bytes()).succeeded();
    assert!(!listed(&text, plane).contains(&name));
    let other = text.replace("not-a-secret", "another-one");
    assert_ne!(other, text);
    let refused = plane.keelway.run(&["snapshot", "list", "c1"], other.as_bytes());
    assert!(refused.code() == 1 && refused.stderr.contains("403 SignatureDoesNotMatch"), "{}", refused.stderr);
}
