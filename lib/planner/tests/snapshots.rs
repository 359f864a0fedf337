//! When snapshots are due, and what is recorded of them.

use keelway_api::{
    Cluster, Time, condition,
    jiff::Timestamp,
    snapshots::{SnapshotSchedule, SnapshotStatus},
};
use keelway_planner::{is_snapshot_due, next_snapshot, record_snapshot, snapshot_due_since};
use serde_json::json;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A cluster that was created at 10:30, with a snapshot at every full hour.
fn cluster() -> Cluster {
    serde_json::from_value(json!({
        "apiVersion": "keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "c1", "namespace": "default"},
        "spec": {"version": "1.37.0", "etcd": {"snapshots": {"sink": {"directory": {"path": "/srv"}}}}},
        "status": {
            "initialization": {"controlPlaneInitialized": true},
            "etcd": {"bornAt": "2026-11-27T10:30:00Z", "initialCluster": {}},
        },
    }))
    .unwrap()
}

fn taken(at: &str) -> SnapshotStatus {
    let (time, name) = (Time(time(at)), "20261127T110003Z-7".to_owned());
    SnapshotStatus { name, time, revision: 7, size: 20_480 }
}

#[test]
fn a_snapshot_is_due_at_the_next_time_after_the_last_one() {
    let mut cluster = cluster();
    assert_eq!(next_snapshot(&cluster), Some(time("2026-11-27T11:00:00Z")));
    assert!(!is_snapshot_due(&cluster, time("2026-11-27T10:59:59Z")));
    assert!(is_snapshot_due(&cluster, time("2026-11-27T11:00:00Z")));
    record_snapshot(&mut cluster, Ok(taken("2026-11-27T11:00:03Z")), time("2026-11-27T11:00:05Z"));
    assert_eq!(next_snapshot(&cluster), Some(time("2026-11-27T12:00:00Z")));
    assert!(is_snapshot_due(&cluster, time("2026-11-29T00:00:00Z")), "a time that was missed is made up for");
    record_snapshot(&mut cluster, Ok(taken("2026-11-29T00:00:00Z")), time("2026-11-29T00:00:01Z"));
    assert!(!is_snapshot_due(&cluster, time("2026-11-29T00:30:00Z")), "once");
}

#[test]
fn a_failure_is_recorded_until_the_next_snapshot_and_retried_at_the_next_time() {
    let mut cluster = cluster();
    let at = time("2026-11-27T11:00:05Z");
    record_snapshot(&mut cluster, Err("no member".to_owned()), at);
    assert_eq!(next_snapshot(&cluster), Some(time("2026-11-27T12:00:00Z")));
    assert_eq!(snapshot_due_since(&cluster), Some(time("2026-11-27T11:00:00Z")), "it stays overdue");
    let status = cluster.status.as_ref().unwrap();
    let found = status.conditions.iter().find(|condition| condition.type_ == "EtcdBackedUp").unwrap();
    assert_eq!(
        (found.status.as_str(), found.reason.as_str(), found.message.as_str()),
        ("False", "SnapshotFailed", "no member")
    );
    record_snapshot(&mut cluster, Ok(taken("2026-11-27T12:00:00Z")), time("2026-11-27T12:00:02Z"));
    let status = cluster.status.as_ref().unwrap();
    assert!(!condition::has(&status.conditions, "EtcdBackedUp"));
    let snapshots = status.etcd.as_ref().unwrap().snapshots.as_ref().unwrap();
    assert_eq!((snapshots.failure.as_ref(), snapshots.last.as_ref().unwrap().revision), (None, 7));
    record_snapshot(&mut cluster, Err("no room".to_owned()), time("2026-11-27T13:00:02Z"));
    let snapshots = cluster.status.unwrap().etcd.unwrap().snapshots.unwrap();
    assert_eq!(snapshots.last.unwrap().revision, 7, "the last snapshot is not affected");
}

#[test]
fn nothing_is_due_without_a_store_or_a_schedule() {
    let late = time("2027-01-01T00:00:00Z");
    let changes: [fn(&mut Cluster); 5] = [
        |cluster| cluster.spec.paused = true,
        |cluster| cluster.spec.etcd.snapshots = None,
        |cluster| cluster.spec.etcd.snapshots.as_mut().unwrap().schedule = String::new(),
        |cluster| cluster.status.as_mut().unwrap().initialization = None,
        |cluster| cluster.metadata.deletion_timestamp = Some(Time("2026-11-27T10:31:00Z".parse().unwrap())),
    ];
    assert!(is_snapshot_due(&cluster(), late));
    for change in changes {
        let mut other = cluster();
        change(&mut other);
        assert!(!is_snapshot_due(&other, late));
    }
}

#[test]
fn schedules_are_those_of_cron_jobs() {
    let next = |text: &str| {
        let next = SnapshotSchedule::parse(text).unwrap().next_after(time("2026-11-27T10:30:00Z"));
        next.map(|next| next.to_string()).unwrap_or_default()
    };
    assert_eq!(next("0 */6 * * *"), "2026-11-27T12:00:00Z");
    assert_eq!(next("15 3 * * MON-FRI"), "2026-11-30T03:15:00Z");
    assert_eq!(next("0 0 1 1 *"), "2027-01-01T00:00:00Z");
    assert_eq!(next("*/5 10,11 * * *"), "2026-11-27T10:35:00Z");
    for text in
        ["", "0 * * *", "0 * * * * *", "60 * * * *", "0 0 * * Europe/Berlin", "@hourly", "0 0 L * *x", "0 0 1#2 * *"]
    {
        assert!(SnapshotSchedule::parse(text).is_err(), "{text}");
    }
}
