//! The queue of Works, and the files of what was applied.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use keelway_fleet_agent::{
    decision::{AppliedRecord, OrderedObject},
    manifest::{AppliedName, ApplyRank},
    record_store::{RecordStore, StoredWork},
    work_queue::WorkQueue,
};
use serde_json::json;

fn stored(kind: &str, work: &str) -> StoredWork {
    let [version, kind, name] = ["v1", kind, "a"].map(str::to_owned);
    let object = AppliedName { group: String::new(), version, kind, namespace: Some("shop".to_owned()), name };
    let order = OrderedObject {
        work: work.to_owned(),
        uid: "w1".to_owned(),
        generation: 1,
        object,
        overwrites: false,
        corrects_drift: true,
        is_deletion: false,
        was_applied: true,
    };
    StoredWork { order, record: AppliedRecord::default(), manifest: json!({ "data": { "password": "c2VjcmV0" } }) }
}

fn loaded(store: &RecordStore) -> Vec<String> {
    let mut works = Vec::new();
    store.load(|order, _| works.push(order.work)).unwrap();
    works
}

#[test]
fn applied_works_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let long = "a".repeat(253);
    let mut store = RecordStore::open(folder.path()).unwrap();
    store.put(stored("ConfigMap", &long)).unwrap();
    fs::write(folder.path().join("broken.json"), "{").unwrap();
    let mut again = RecordStore::open(folder.path()).unwrap();
    assert_eq!(loaded(&again), std::slice::from_ref(&long));
    assert_eq!(again.get(&long).unwrap().manifest["data"]["password"], "c2VjcmV0");
    for entry in fs::read_dir(folder.path()).unwrap().flatten().filter(|entry| entry.file_name() != "broken.json") {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    again.remove(&long);
    assert!(again.get(&long).is_none() && loaded(&again).is_empty());
}

#[test]
fn a_secret_is_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = RecordStore::open(folder.path()).unwrap();
    store.put(stored("Secret", "secret")).unwrap();
    assert!(store.get("secret").is_some());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    store.remove("secret");
    assert!(store.get("secret").is_none());
}

#[test]
fn namespaces_and_definitions_are_before_all_others() {
    let (mut queue, now) = (WorkQueue::default(), Instant::now());
    queue.add("web", ApplyRank::Other);
    queue.add("widgets", ApplyRank::Definition);
    queue.add("shop", ApplyRank::Namespace);
    assert_eq!(queue.start(now).as_deref(), Some("shop"));
    assert_eq!(queue.start(now), None, "the namespace runs");
    queue.finish("shop", false, now);
    assert_eq!(queue.start(now).as_deref(), Some("widgets"));
    queue.finish("widgets", true, now);
    assert_eq!(queue.start(now).as_deref(), Some("web"), "a definition that failed holds up nothing");
}

#[test]
fn a_work_that_changes_while_it_runs_runs_again_and_never_twice_at_once() {
    let (mut queue, now) = (WorkQueue::default(), Instant::now());
    queue.add("web", ApplyRank::Other);
    queue.add("web", ApplyRank::Other);
    assert_eq!(queue.start(now).as_deref(), Some("web"));
    queue.add("web", ApplyRank::Other);
    assert_eq!(queue.start(now), None);
    queue.finish("web", false, now);
    assert_eq!(queue.start(now).as_deref(), Some("web"));
    queue.finish("web", false, now);
    assert_eq!(queue.start(now), None);
    assert_eq!(queue.next_retry(), None);
}

#[test]
fn the_pause_after_failures_grows_and_ends_with_a_success() {
    let (mut queue, mut now) = (WorkQueue::default(), Instant::now());
    queue.add("web", ApplyRank::Other);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert_eq!(queue.start(now).as_deref(), Some("web"));
        queue.finish("web", true, now);
        let next = queue.next_retry().unwrap();
        pauses.push(next - now);
        assert_eq!(queue.start(now), None);
        now = next;
    }
    assert_eq!(pauses[0], Duration::from_millis(500));
    assert_eq!(pauses[7], Duration::from_secs(30));
    assert!(pauses.is_sorted());
    queue.retry_all(now);
    assert_eq!(queue.start(now).as_deref(), Some("web"));
    queue.finish("web", false, now);
    assert_eq!(queue.next_retry(), None);
}

#[test]
fn a_forgotten_work_does_not_run() {
    let (mut queue, now) = (WorkQueue::default(), Instant::now());
    queue.add("web", ApplyRank::Other);
    queue.remove("web");
    assert_eq!(queue.start(now), None);
    queue.add("api", ApplyRank::Other);
    assert_eq!(queue.start(now).as_deref(), Some("api"));
    queue.add("api", ApplyRank::Other);
    queue.remove("api");
    queue.finish("api", false, now);
    assert_eq!(queue.start(now), None);
}
