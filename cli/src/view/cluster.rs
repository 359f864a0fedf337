//! The view of clusters.

use keelway_api::{Cluster, Condition, Documents, condition, jiff::Timestamp, role::Role};

use super::{TableRow, age, message_of, reason_of, status_of};

pub(crate) struct ClusterView {
    pub(crate) name: String,
    pub(crate) available: String,
    pub(crate) version: String,
    pub(crate) etcd: String,
    pub(crate) api: String,
    pub(crate) endpoint: String,
    pub(crate) age: String,
    pub(crate) fleet: String,
    /// The age of its last snapshot.
    pub(crate) snapshot: String,
    pub(crate) progressing: String,
    pub(crate) message: String,
}

impl TableRow for ClusterView {
    const HEADER: &'static [&'static str] = &[
        "CLUSTER",
        "AVAILABLE",
        "VERSION",
        "ETCD",
        "API",
        "ENDPOINT",
        "AGE",
        "FLEET",
        "SNAPSHOT",
        "PROGRESSING",
        "MESSAGE",
    ];
    const NARROW: usize = 7;

    fn cells(&self) -> Vec<String> {
        let Self { name, available, version, etcd, api, endpoint, age, fleet, snapshot, progressing, message } = self;
        [name, available, version, etcd, api, endpoint, age, fleet, snapshot, progressing, message]
            .map(Clone::clone)
            .into()
    }
}

impl ClusterView {
    pub(crate) fn of(documents: &Documents, cluster: &Cluster, now: Timestamp) -> Self {
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let endpoints = cluster.status.as_ref().map(|status| status.endpoints.join(",")).unwrap_or_default();
        Self {
            name: cluster.reference().to_string(),
            available: availability(conditions),
            version: version(cluster),
            etcd: ready_of(documents, cluster, Role::Etcd),
            api: ready_of(documents, cluster, Role::KubeApiserver),
            endpoint: if endpoints.is_empty() { "<none>".to_owned() } else { endpoints },
            age: age(cluster.metadata.creation_timestamp.as_ref(), now),
            fleet: cluster.spec.is_fleet().to_string(),
            snapshot: last_snapshot(cluster, now),
            progressing: reason_of(conditions, "Progressing"),
            message: message_of(conditions, "Degraded"),
        }
    }
}

/// Returns the release, or during an upgrade the previous one and the wanted one.
fn version(cluster: &Cluster) -> String {
    let wanted = &cluster.spec.version;
    let runs = cluster.status.as_ref().and_then(|status| status.version.as_ref());
    runs.filter(|runs| *runs != wanted).map_or(wanted.clone(), |runs| format!("{runs}->{wanted}"))
}

/// Returns the status of the condition `Available`, or `Asleep` if that is why the cluster is not available.
fn availability(conditions: &[Condition]) -> String {
    if condition::is_true(conditions, "Asleep") { "Asleep".to_owned() } else { status_of(conditions, "Available") }
}

/// Returns the age of the last snapshot. It is the time since which changes may be lost.
fn last_snapshot(cluster: &Cluster, now: Timestamp) -> String {
    let snapshots = cluster.status.as_ref().and_then(|status| status.etcd.as_ref()?.snapshots.as_ref());
    let last = snapshots.and_then(|snapshots| snapshots.last.as_ref());
    last.map_or_else(|| "<none>".to_owned(), |last| age(Some(&last.time), now))
}

/// Returns `READY/DESIRED` for one role.
fn ready_of(documents: &Documents, cluster: &Cluster, role: Role) -> String {
    let ready = documents
        .components
        .values()
        .filter(|component| Some(&component.spec.cluster_id) == cluster.id() && component.spec.role == role)
        .filter(|component| {
            component.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
        })
        .count();
    format!("{ready}/{}", cluster.spec.replicas(role))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::table;

    #[test]
    fn the_age_of_the_last_snapshot_is_shown() {
        let mut documents = keelway_reconciler::testing::world();
        let now: Timestamp = "2026-11-27T14:52:00Z".parse().unwrap();
        let shown = |documents: &Documents| {
            let cluster = documents.clusters.values().next().unwrap();
            let text = table(&[ClusterView::of(documents, cluster, now)], true);
            let lines: Vec<&str> = text.lines().collect();
            let column = lines[0].find("SNAPSHOT").unwrap();
            lines[1][column..].split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!(shown(&documents), "<none>");
        let last = json!({ "name": "20261127T115200Z-5", "time": "2026-11-27T11:52:00Z", "revision": 5, "size": 1 });
        let store = json!({ "bornAt": "2026-11-27T10:00:00Z", "initialCluster": {}, "snapshots": { "last": last } });
        let cluster = documents.clusters.values_mut().next().unwrap();
        cluster.status.as_mut().unwrap().etcd = Some(serde_json::from_value(store).unwrap());
        assert_eq!(shown(&documents), "3h");
    }
}
