//! A fleet for tests, as documents of users.

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_fleet::{
    CandidateCluster, CapacityLedger, DecisionRequest, FleetObject, FleetState, PlacementDecision, PlacementOutcome,
    PlacementSpec, PolicySet, SchedulePolicy, WorkloadCluster, decide, desired_works, invariants::check_decision,
};
use serde_json::{Value as Json, json};

/// A fleet and the Placement of one object.
pub(crate) struct World {
    pub(crate) fleet: FleetState,
    pub(crate) current: Option<PlacementSpec>,
}

impl World {
    pub(crate) fn new<const N: usize>(clusters: [CandidateCluster; N]) -> Self {
        let clusters = clusters.into_iter().map(|cluster| (cluster.name.clone(), cluster)).collect();
        let namespaces = ["default", "shop"].map(|name| {
            (name.to_owned(), BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), name.to_owned())]))
        });
        let mut fleet = FleetState { clusters, namespaces: namespaces.into(), ..FleetState::default() };
        fleet.clock.now = start();
        fleet.capacity = ample(fleet.clusters.keys().map(String::as_str));
        Self { fleet, current: None }
    }

    pub(crate) fn set_policies<const N: usize>(&mut self, policies: [SchedulePolicy; N]) {
        self.fleet.policies = PolicySet::read(policies);
        assert!(self.fleet.policies.unreadable().is_empty(), "{:?}", self.fleet.policies.unreadable());
    }

    pub(crate) fn cluster(&mut self, name: &str) -> &mut CandidateCluster {
        self.fleet.clusters.get_mut(name).unwrap()
    }

    /// The time passes.
    pub(crate) fn wait(&mut self, seconds: i64) {
        self.fleet.clock.now += SignedDuration::from_secs(seconds);
    }

    /// The condition `Ready` of a cluster becomes this.
    pub(crate) fn report(&mut self, cluster: &str, status: &str) {
        let now = self.fleet.clock.now;
        report(self.cluster(cluster), status, now);
    }

    /// Decides, and checks the decision.
    pub(crate) fn decide(&self, object: &Json) -> PlacementDecision {
        let object = parsed(object);
        let request = DecisionRequest { object: &object, is_autoscaled: false, current: self.current.as_ref() };
        let decision = decide(&self.fleet, &request);
        assert_eq!(check_decision(&self.fleet, &request, &decision), []);
        decision
    }

    /// Decides, and stores the Placement.
    pub(crate) fn place(&mut self, object: &Json) -> PlacementSpec {
        if let PlacementOutcome::Place(placement) = self.decide(object).outcome {
            self.current = Some(placement);
        }
        self.current.clone().expect("a Placement")
    }

    /// Decides, stores the Placement, and returns its clusters with their replicas.
    pub(crate) fn placed(&mut self, object: &Json) -> Vec<(&str, Option<u32>)> {
        self.place(object);
        let clusters = self.current.iter().flat_map(|placement| &placement.clusters);
        clusters.map(|cluster| (cluster.name.as_str(), cluster.replicas)).collect()
    }

    /// Returns the reason of a cluster in the stored Placement.
    pub(crate) fn reason(&self, cluster: &str) -> &str {
        let mut reasons = self.current.iter().flat_map(|placement| &placement.reasons);
        reasons.find(|reason| reason.cluster == cluster).map_or("none", |reason| &reason.reason)
    }

    /// Decides, and returns the manifests by cluster.
    pub(crate) fn manifests(&mut self, object: &Json) -> BTreeMap<String, Json> {
        let placement = self.place(object);
        let works = desired_works(&parsed(object), &placement, false);
        works.into_iter().map(Result::unwrap).map(|work| (work.cluster, work.spec.manifest)).collect()
    }
}

/// The time at which the clusters of tests became ready.
pub(crate) fn start() -> Timestamp {
    "2026-11-27T08:00:00Z".parse().unwrap()
}

/// Sets the condition `Ready` of a cluster as its controller does.
pub(crate) fn report(cluster: &mut CandidateCluster, status: &str, now: Timestamp) {
    let ready = cluster.ready.as_mut().unwrap();
    if ready.status != status {
        status.clone_into(&mut ready.status);
        ready.last_transition_time = Time(now);
    }
}

/// Returns a ledger in which each cluster has more room than any test needs.
pub(crate) fn ample<'a>(clusters: impl IntoIterator<Item = &'a str>) -> CapacityLedger {
    let mut ledger = CapacityLedger::default();
    for cluster in clusters {
        let report = json!({ "nodeGroups": [{ "rooms": [{ "nodes": 100, "free": { "cpu": "64", "memory": "256Gi", "pods": "110" } }] }] });
        ledger.report(cluster, Some(&serde_json::from_value(report).unwrap()));
    }
    ledger
}

pub(crate) fn parsed(object: &Json) -> FleetObject {
    FleetObject::parse(object.clone()).unwrap()
}

/// A cluster that is ready.
pub(crate) fn cluster(name: &str) -> CandidateCluster {
    labelled(name, json!({}))
}

/// A cluster that is ready, with labels.
pub(crate) fn labelled(name: &str, labels: Json) -> CandidateCluster {
    let mut cluster = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": name },
        "spec": {},
        "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "AgentReports", "message": "",
            "lastTransitionTime": "2026-11-27T08:00:00Z",
        }] },
    });
    cluster["metadata"]["labels"] = labels;
    let cluster: WorkloadCluster = serde_json::from_value(cluster).unwrap();
    CandidateCluster::read(&cluster)
}

/// A policy that selects everything, with more fields.
pub(crate) fn policy(name: &str, more: Json) -> SchedulePolicy {
    let mut spec = json!({ "resourceSelectors": { "labelSelectors": [{}] } });
    if let (Json::Object(spec), Json::Object(more)) = (&mut spec, more) {
        spec.extend(more);
    }
    serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": name },
        "spec": spec,
    }))
    .unwrap()
}

/// An object without content.
pub(crate) fn object(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Json {
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name, "uid": "1" } });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

/// A Deployment in `default`.
pub(crate) fn deployment(name: &str, replicas: u32, labels: Json, annotations: Json) -> Json {
    let mut deployment = object("apps/v1", "Deployment", Some("default"), name);
    deployment["metadata"]["generation"] = json!(1);
    deployment["metadata"]["labels"] = labels;
    deployment["metadata"]["annotations"] = annotations;
    deployment["spec"] = json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": name } },
        "template": { "metadata": { "labels": { "app": name } }, "spec": {} },
    });
    deployment
}
