//! Computes metrics of clusters and their components.

use std::collections::BTreeMap;

use keelway_api::{Component, Condition, Documents, condition, name::ClusterRef, role::Role};

use super::{
    family::{MetricFamily, MetricLabel, count, seconds},
    state::ClusterState,
};

pub(super) fn families(documents: &Documents) -> [MetricFamily; 4] {
    [clusters(documents), conditions(documents), deletions(documents), components(documents)]
}

/// Counts clusters by state. A state without clusters has the value 0.
fn clusters(documents: &Documents) -> MetricFamily {
    let mut family =
        MetricFamily::new("clusters", "Clusters by state: Available, Progressing, Degraded, Asleep or Deleting");
    for state in ClusterState::ALL {
        let number = documents.clusters.values().filter(|cluster| ClusterState::of(cluster) == state).count();
        family.add([("state", state.as_str().to_owned())], count(number));
    }
    family
}

fn conditions(documents: &Documents) -> MetricFamily {
    let mut family = MetricFamily::new("cluster_condition", "1 if the condition of the cluster is True, else 0");
    for (name, cluster) in &documents.clusters {
        for condition in cluster.status.iter().flat_map(|status| &status.conditions) {
            let labels = of(name).into_iter().chain([("condition", condition.type_.clone())]);
            family.add(labels, gauge_value(condition));
        }
    }
    family
}

fn deletions(documents: &Documents) -> MetricFamily {
    let name = "cluster_deletion_timestamp_seconds";
    let mut family =
        MetricFamily::new(name, "Time at which the deletion of a cluster was requested, in seconds since the epoch");
    for (name, cluster) in &documents.clusters {
        let at = cluster.metadata.deletion_timestamp.as_ref();
        family.add_known(of(name), at.map(|at| seconds(at.0)));
    }
    family
}

fn components(documents: &Documents) -> MetricFamily {
    let mut found: BTreeMap<(Role, &str), usize> = BTreeMap::new();
    for role in Role::ALL {
        found.extend([((role, "Ready"), 0), ((role, "NotReady"), 0)]);
    }
    for component in documents.components.values() {
        let state = if is_ready(component) { "Ready" } else { "NotReady" };
        *found.entry((component.spec.role, state)).or_default() += 1;
    }
    let mut family = MetricFamily::new("components", "Components by role and readiness");
    for ((role, state), number) in found {
        family.add([("role", role.to_string()), ("state", state.to_owned())], count(number));
    }
    family
}

fn is_ready(component: &Component) -> bool {
    component.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
}

/// Returns the labels of a cluster.
pub(super) fn of(cluster: &ClusterRef) -> [MetricLabel; 2] {
    [("namespace", cluster.namespace.clone()), ("cluster", cluster.name.clone())]
}

/// Returns 1 if the condition is `True`, else 0.
pub(super) fn gauge_value(condition: &Condition) -> f64 {
    f64::from(u8::from(condition.status == condition::ConditionStatus::True.as_str()))
}

#[cfg(test)]
pub(super) mod tests {
    use keelway_api::{
        Cluster, Time,
        cluster::{ClusterSpec, ClusterStatus, Initialization},
        condition::{ConditionStatus, ConditionValue},
    };

    use super::*;

    /// Returns a cluster with the conditions `Available`, `Degraded` and `Progressing`. Those in `truths` are `True`.
    pub(in crate::metrics) fn cluster(name: &str, truths: &[&str], initialized: bool) -> Cluster {
        let at = Time("2026-01-01T00:01:00Z".parse().unwrap());
        let mut conditions = Vec::new();
        // Only a cluster that sleeps has this one.
        let asleep = truths.iter().copied().filter(|kind| *kind == "Asleep");
        for kind in ["Available", "Degraded", "Progressing"].into_iter().chain(asleep) {
            let status = if truths.contains(&kind) { ConditionStatus::True } else { ConditionStatus::False };
            let verdict = ConditionValue { status, reason: "Told".to_owned(), message: String::new() };
            condition::set(&mut conditions, kind, verdict, None, &at);
        }
        let spec = serde_json::from_value::<ClusterSpec>(serde_json::json!({ "version": "1.37.0" })).unwrap();
        let mut cluster = Cluster::new(name, spec);
        cluster.metadata.creation_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
        cluster.status = Some(ClusterStatus {
            conditions,
            initialization: Some(Initialization { control_plane_initialized: initialized }),
            ..ClusterStatus::default()
        });
        cluster
    }

    pub(in crate::metrics) fn documents(clusters: impl IntoIterator<Item = Cluster>) -> Documents {
        let mut documents = Documents::default();
        documents.clusters.extend(clusters.into_iter().map(|cluster| (cluster.reference(), cluster.into())));
        documents
    }

    #[test]
    fn every_state_has_a_value() {
        let documents = documents([cluster("c1", &["Available"], true), cluster("c2", &["Degraded"], true)]);
        let [clusters, conditions, deletions, components] = families(&documents);
        let expected =
            ["state=Available 1", "state=Progressing 0", "state=Degraded 1", "state=Asleep 0", "state=Deleting 0"];
        assert_eq!(clusters.lines(), expected);
        assert_eq!(conditions.samples.len(), 6);
        assert_eq!(conditions.lines()[0], "namespace=default cluster=c1 condition=Available 1");
        assert_eq!(conditions.lines()[1], "namespace=default cluster=c1 condition=Degraded 0");
        assert_eq!(deletions.samples, []);
        assert_eq!(components.samples.len(), 2 * Role::ALL.len());
        assert!(components.lines().iter().all(|line| line.ends_with(" 0")));
    }
}
