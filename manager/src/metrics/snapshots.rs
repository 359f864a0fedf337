//! Computes metrics of snapshots.

use keelway_api::{Cluster, Documents, snapshots::SnapshotStatus};
use keelway_planner::snapshot_due_since;

use super::{
    clusters::of,
    family::{MetricFamily, amount, seconds},
};

pub(super) fn families(documents: &Documents) -> [MetricFamily; 3] {
    let mut taken = MetricFamily::new(
        "cluster_snapshot_timestamp_seconds",
        "Time of the last snapshot of a cluster's etcd, in seconds since the epoch",
    );
    let mut due = MetricFamily::new(
        "cluster_snapshot_due_timestamp_seconds",
        "First time of the schedule after the last snapshot of a cluster's etcd, in seconds since the epoch",
    );
    let mut size = MetricFamily::new(
        "cluster_snapshot_size_bytes",
        "Size of the database in the last snapshot of a cluster's etcd",
    );
    for (name, cluster) in &documents.clusters {
        let last = last(cluster);
        taken.add_known(of(name), last.map(|last| seconds(last.time.0)));
        due.add_known(of(name), snapshot_due_since(cluster).map(seconds));
        size.add_known(of(name), last.map(|last| amount(last.size)));
    }
    [taken, due, size]
}

fn last(cluster: &Cluster) -> Option<&SnapshotStatus> {
    cluster.status.as_ref()?.etcd.as_ref()?.snapshots.as_ref()?.last.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metrics::clusters::tests::{cluster, documents};

    #[test]
    fn a_failure_does_not_make_a_snapshot_less_overdue() {
        let mut cluster = cluster("c1", &[], true);
        let sink = json!({"sink": {"directory": {"path": "/srv"}}});
        cluster.spec.etcd.snapshots = Some(serde_json::from_value(sink).unwrap());
        let last = json!({"name": "20260101T000000Z-7", "time": "2026-01-01T00:00:00Z", "revision": 7, "size": 20_480});
        let failure = json!({"time": "2026-01-01T05:00:00Z", "message": "no room"});
        let store = json!({
            "bornAt": "2025-01-01T00:00:00Z",
            "initialCluster": {},
            "snapshots": {"last": last, "failure": failure},
        });
        cluster.status.get_or_insert_default().etcd = Some(serde_json::from_value(store).unwrap());
        let found = families(&documents([cluster]));
        let lines: Vec<String> = found.iter().flat_map(MetricFamily::lines).collect();
        let labels = "namespace=default cluster=c1";
        assert_eq!(lines, [format!("{labels} 1767225600"), format!("{labels} 1767229200"), format!("{labels} 20480")]);
    }
}
