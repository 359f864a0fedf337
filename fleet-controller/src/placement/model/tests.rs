//! The loop over objects without an API server: plans are written into the model, and agents report what they applied.

use std::{collections::BTreeMap, time::Instant};

use k8s_openapi::jiff::Timestamp;
use keelway_fleet::{
    PlacedKind, PlacementLink, Work, WorkOrder, WorkloadCluster, WorkloadPlacement, names::works_namespace,
};
use kube::{api::DynamicObject, runtime::watcher::Event};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{FleetChange, FleetModel, WrittenObjects};
use crate::placement::{plan::plan, queue::ROUND};

/// What the names of the Placements of Deployments begin with.
const DEPLOYMENT: &str = "deployment.apps";
const FLEET: &str = "fleet.keelway.dev/v1alpha1";

/// A fleet in memory.
struct TestFleet {
    model: FleetModel,
    version: u64,
    now: Instant,
    works: BTreeMap<(String, String), Value>,
}

fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
}

fn timestamp(time: &str) -> Timestamp {
    time.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn kind(name: &str) -> PlacedKind {
    PlacedKind::built_in().find(|kind| kind.kind == name).unwrap_or_else(|| panic!("{name}"))
}

impl TestFleet {
    /// Two clusters with room for everything, a policy that selects everything, and so many Deployments.
    fn new(deployments: usize) -> Self {
        let kinds = ["ConfigMap", "Deployment", "Namespace"];
        let model = FleetModel::new(kinds.iter().map(|name| kind(name)));
        let mut fleet = Self { model, version: 0, now: Instant::now(), works: BTreeMap::new() };
        fleet.observe(FleetChange::Policy(Event::Init));
        let policy = json!({ "apiVersion": FLEET, "kind": "SchedulePolicy", "metadata": { "name": "all" },
                             "spec": { "resourceSelectors": { "labelSelectors": [{}] } } });
        fleet.observe(FleetChange::Policy(Event::InitApply(typed(policy))));
        fleet.observe(FleetChange::Policy(Event::InitDone));
        fleet.observe(FleetChange::Placement(Event::InitDone));
        fleet.observe(FleetChange::Work(Event::InitDone));
        for name in kinds {
            fleet.observe(FleetChange::Object(kind(name), Event::InitDone));
        }
        fleet.observe(FleetChange::Cluster(Event::InitDone));
        fleet.cluster("a", &json!({}), 64);
        fleet.cluster("b", &json!({}), 64);
        for number in 0..deployments {
            fleet.object("Deployment", &format!("web-{number}"));
        }
        fleet.settle();
        fleet
    }

    fn observe(&mut self, change: FleetChange) {
        self.model.observe(change, self.now);
    }

    fn cluster(&mut self, name: &str, spec: &Value, cpus: u32) {
        self.reported(name, spec, cpus, ("True", "2026-11-27T08:00:00Z"));
    }

    /// The condition `Ready` of a cluster has this status since this time.
    fn ready(&mut self, name: &str, status: &str, since: &str) {
        self.reported(name, &json!({}), 64, (status, since));
    }

    fn reported(&mut self, name: &str, spec: &Value, cpus: u32, (status, since): (&str, &str)) {
        let rooms = json!([{ "nodes": 4, "free": { "cpu": cpus.to_string(), "memory": "64Gi", "pods": "110" } }]);
        let cluster: WorkloadCluster = typed(json!({
            "apiVersion": FLEET, "kind": "Cluster", "metadata": { "name": name }, "spec": spec,
            "status": {
                "conditions": [{ "type": "Ready", "status": status, "reason": "r", "message": "", "lastTransitionTime": since }],
                "capacity": { "observedTime": "2026-11-27T08:00:00.000000Z", "nodeGroups": [{ "rooms": rooms }] },
            },
        }));
        self.observe(FleetChange::Cluster(Event::Apply(cluster)));
    }

    /// The policy gets this failover.
    fn failover(&mut self, failover: &Value) {
        let policy = json!({ "apiVersion": FLEET, "kind": "SchedulePolicy", "metadata": { "name": "all" },
                             "spec": { "resourceSelectors": { "labelSelectors": [{}] }, "failover": failover } });
        self.observe(FleetChange::Policy(Event::Apply(typed(policy))));
    }

    /// It is this time.
    fn time(&mut self, time: &str) {
        self.model.set_time(timestamp(time), self.now);
    }

    fn object(&mut self, of: &str, name: &str) {
        let requests = json!({ "resources": { "requests": { "cpu": "1" } } });
        let spec = json!({ "replicas": 1, "template": { "spec": { "containers": [requests] } } });
        self.with_spec(of, name, if of == "Deployment" { &spec } else { &Value::Null });
    }

    fn deployment(&mut self, name: &str, spec: &Value) {
        self.with_spec("Deployment", name, spec);
    }

    fn with_spec(&mut self, of: &str, name: &str, spec: &Value) {
        let object: DynamicObject = typed(json!({
            "apiVersion": kind(of).api_version(), "kind": of, "metadata": { "name": name, "namespace": "shop", "uid": name },
            "spec": spec,
        }));
        self.observe(FleetChange::Object(kind(of), Event::Apply(object)));
    }

    /// Plans and writes until nothing is due any more. Returns the number of plans.
    fn settle(&mut self) -> usize {
        let mut plans = 0;
        loop {
            self.now += ROUND;
            let links = self.model.next(usize::MAX, self.now);
            if links.is_empty() {
                return plans;
            }
            for link in links {
                plans += 1;
                self.write(&link);
                assert!(plans < 10_000, "the fleet does not settle");
            }
        }
    }

    fn write(&mut self, link: &PlacementLink) {
        let plan = plan(link, &self.model);
        self.model.planned(link, &plan);
        let mut written = WrittenObjects::default();
        let known = self.model.placement(link).cloned();
        if let Some(spec) = plan.save {
            let generation = known.as_ref().and_then(|known| known.metadata.generation).unwrap_or(0) + 1;
            let mut placement = WorkloadPlacement::new(&link.name, spec);
            placement.metadata.namespace = Some(link.namespace.clone());
            placement.metadata.generation = Some(generation);
            placement.status = known.and_then(|known| known.status);
            written.placement = Some(placement);
        } else if let (Some(status), Some(mut known)) = (plan.placement_status, known) {
            known.status = Some(status);
            written.placement = Some(known);
        }
        for order in plan.orders {
            match order {
                WorkOrder::Create(work) | WorkOrder::Update(work) => {
                    let value = json!({
                        "apiVersion": FLEET, "kind": "Work",
                        "metadata": { "name": work.name, "namespace": works_namespace(&work.cluster), "generation": 1 },
                        "spec": work.spec,
                    });
                    written.works.push(self.versioned(value));
                }
                WorkOrder::Delete { cluster, name, .. } => {
                    let mut value = self.works[&(works_namespace(&cluster), name)].clone();
                    value["metadata"]["deletionTimestamp"] = json!("2026-11-27T08:00:00Z");
                    written.works.push(self.versioned(value));
                }
            }
        }
        self.model.written(written, self.now);
    }

    fn versioned(&mut self, mut work: Value) -> Work {
        self.version += 1;
        work["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let key = |field: &str| work["metadata"][field].as_str().unwrap_or_default().to_owned();
        self.works.insert((key("namespace"), key("name")), work.clone());
        typed(work)
    }

    /// The agent of a cluster reports one of its Works: it is applied, its pods are ready, or it is gone if it is being deleted.
    fn report(&mut self, cluster: &str, name: &str) {
        let key = (works_namespace(cluster), format!("deployment.apps.shop.{name}"));
        let mut work = self.works[&key].clone();
        if work["metadata"]["deletionTimestamp"].is_string() {
            self.works.remove(&key);
            return self.observe(FleetChange::Work(Event::Delete(typed(work))));
        }
        work["status"] = json!({
            "observedGeneration": 1, "objectGeneration": 1,
            "objectStatus": { "observedGeneration": 1, "replicas": 1, "readyReplicas": 1 },
            "conditions": [{ "type": "Applied", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "2026-11-27T08:00:00Z" }],
        });
        let work = self.versioned(work);
        self.observe(FleetChange::Work(Event::Apply(work)));
    }

    /// Returns the names of the Works of a cluster.
    fn works(&self, cluster: &str) -> Vec<&str> {
        let namespace = works_namespace(cluster);
        let own = self.works.keys().filter(|(of, _)| *of == namespace);
        own.map(|(_, name)| name.rsplit('.').next().unwrap_or_default()).collect()
    }

    fn condition(&self, of: &str, name: &str) -> Option<(String, String)> {
        let link = PlacementLink { namespace: "shop".to_owned(), name: format!("{of}.{name}") };
        let conditions = &self.model.placement(&link)?.status.as_ref()?.conditions;
        let moving = conditions.iter().find(|condition| condition.type_ == "Moving")?;
        Some((moving.reason.clone(), moving.message.clone()))
    }
}

#[test]
fn a_drain_moves_as_many_objects_as_allowed_at_a_time_until_the_cluster_is_empty() {
    let mut fleet = TestFleet::new(5);
    assert_eq!((fleet.works("a").len(), fleet.works("b").len()), (5, 0));
    for number in 0..5 {
        fleet.report("a", &format!("web-{number}"));
    }
    fleet.settle();
    fleet.cluster("a", &json!({ "drain": { "maxMoves": 2 } }), 64);
    fleet.settle();
    let mut moved = 0;
    while !fleet.works("a").is_empty() {
        let moving: Vec<String> = fleet.works("b").iter().skip(moved).map(|&name| name.to_owned()).collect();
        assert!((1..=2).contains(&moving.len()), "{moving:?}");
        assert_eq!(fleet.works("a").len(), 5 - moved);
        let Some(name) = moving.first() else { return };
        let waits = ("WaitsForApply".to_owned(), "the object leaves a once b has applied it".to_owned());
        assert_eq!(fleet.condition(DEPLOYMENT, name), Some(waits));
        fleet.report("b", name);
        fleet.settle();
        let leaving = ("Leaving".to_owned(), "the agent of a deletes the object there".to_owned());
        assert_eq!(fleet.condition(DEPLOYMENT, name), Some(leaving));
        fleet.report("a", name);
        fleet.settle();
        assert_eq!(fleet.condition(DEPLOYMENT, name), None);
        moved += 1;
        // The next one begins at once.
        assert_eq!(fleet.works("b").len(), 5.min(moved + 2));
    }
    assert_eq!(fleet.works("b").len(), 5);
    assert_eq!(fleet.settle(), 0);
}

#[test]
fn an_object_that_cannot_leave_moves_once_another_cluster_has_room() {
    let mut fleet = TestFleet::new(1);
    fleet.cluster("b", &json!({}), 0);
    fleet.cluster("a", &json!({ "drain": {} }), 64);
    fleet.settle();
    let message = "a: the cluster is being drained, and no other cluster can run the object";
    assert_eq!(fleet.condition(DEPLOYMENT, "web-0"), Some(("CannotMove".to_owned(), message.to_owned())));
    fleet.cluster("b", &json!({}), 64);
    fleet.settle();
    assert_eq!(fleet.works("b"), ["web-0"]);
}

#[test]
fn what_pods_may_need_leaves_after_them() {
    let mut fleet = TestFleet::new(1);
    fleet.report("a", "web-0");
    fleet.object("ConfigMap", "config");
    fleet.settle();
    fleet.cluster("a", &json!({ "drain": {} }), 64);
    fleet.settle();
    assert_eq!(fleet.works("b"), ["config", "web-0"]);
    assert_eq!(fleet.condition("configmap.core", "config"), None, "it runs in both");
    fleet.report("b", "web-0");
    fleet.settle();
    fleet.report("a", "web-0");
    fleet.settle();
    let waits = ("WaitsForApply".to_owned(), "the object leaves a once b has applied it".to_owned());
    assert_eq!(fleet.condition("configmap.core", "config"), Some(waits), "the last pods have left");
}

#[test]
fn a_report_of_a_cluster_plans_nothing_that_is_placed() {
    let mut fleet = TestFleet::new(20);
    fleet.settle();
    fleet.cluster("a", &json!({}), 63);
    assert_eq!(fleet.settle(), 0);
    // An object without a cluster is planned, and no other.
    fleet.cluster("a", &json!({}), 0);
    fleet.cluster("b", &json!({}), 0);
    fleet.object("Deployment", "late");
    fleet.settle();
    fleet.cluster("b", &json!({}), 1);
    assert!((1..=4).contains(&fleet.settle()));
}

#[test]
fn objects_leave_a_lost_cluster_a_few_at_a_time_and_the_copies_are_deleted_when_it_returns() {
    let mut fleet = TestFleet::new(5);
    for number in 0..5 {
        fleet.report("a", &format!("web-{number}"));
    }
    fleet.failover(&json!({ "maxMoves": 2 }));
    fleet.time("2026-11-27T09:00:00Z");
    fleet.settle();
    fleet.ready("a", "Unknown", "2026-11-27T09:10:00Z");
    fleet.time("2026-11-27T09:10:00Z");
    fleet.settle();
    assert_eq!(fleet.model.deadline(), Some(timestamp("2026-11-27T09:15:00Z")));
    fleet.time("2026-11-27T09:14:59Z");
    assert_eq!(fleet.settle(), 0, "nothing is planned before the time");
    fleet.time("2026-11-27T09:15:00Z");
    fleet.settle();
    let mut moved = 0;
    while moved < 5 {
        assert_eq!(fleet.works("b").len(), 5.min(moved + 2));
        let name = fleet.works("b")[moved].to_owned();
        fleet.report("b", &name);
        fleet.settle();
        // The agent of the lost cluster does not delete the object, and the next one leaves.
        let leaving = ("Leaving".to_owned(), "the agent of a deletes the object there".to_owned());
        assert_eq!(fleet.condition(DEPLOYMENT, &name), Some(leaving));
        moved += 1;
    }
    assert_eq!((fleet.works("a").len(), fleet.works("b").len()), (5, 5));
    assert_eq!(fleet.model.deadline(), None);
    fleet.ready("a", "True", "2026-11-27T09:30:00Z");
    fleet.time("2026-11-27T09:30:00Z");
    fleet.settle();
    for number in 0..5 {
        fleet.report("a", &format!("web-{number}"));
    }
    fleet.settle();
    fleet.time("2026-11-27T10:00:00Z");
    fleet.settle();
    assert_eq!((fleet.works("a").len(), fleet.works("b").len()), (0, 5));
}

#[test]
fn objects_return_at_the_deadline() {
    let mut fleet = TestFleet::new(1);
    fleet.report("a", "web-0");
    fleet.failover(&json!({ "recovery": "Return" }));
    fleet.time("2026-11-27T09:00:00Z");
    fleet.ready("a", "Unknown", "2026-11-27T09:10:00Z");
    fleet.time("2026-11-27T09:15:00Z");
    fleet.settle();
    fleet.report("b", "web-0");
    fleet.settle();
    fleet.ready("a", "True", "2026-11-27T09:20:00Z");
    fleet.time("2026-11-27T09:20:00Z");
    fleet.settle();
    fleet.report("a", "web-0");
    fleet.settle();
    assert_eq!((fleet.works("a"), fleet.works("b")), (vec![], vec!["web-0"]));
    assert_eq!(fleet.model.deadline(), Some(timestamp("2026-11-27T09:25:00Z")));
    fleet.time("2026-11-27T09:25:00Z");
    fleet.settle();
    assert_eq!((fleet.works("a"), fleet.works("b")), (vec!["web-0"], vec!["web-0"]), "it is not ready there yet");
    fleet.report("a", "web-0");
    fleet.settle();
    fleet.report("b", "web-0");
    fleet.settle();
    assert_eq!((fleet.works("a"), fleet.works("b")), (vec!["web-0"], vec![]));
    assert_eq!(fleet.settle(), 0);
}

#[test]
fn a_replica_that_has_just_begun_moves_nothing() {
    let mut fleet = TestFleet::new(1);
    fleet.failover(&json!({}));
    fleet.ready("a", "Unknown", "2026-11-27T09:00:00Z");
    fleet.time("2026-11-27T10:00:00Z");
    fleet.settle();
    assert_eq!(fleet.works("b"), Vec::<&str>::new());
    assert_eq!(fleet.model.deadline(), Some(timestamp("2026-11-27T10:00:40Z")));
    fleet.time("2026-11-27T10:00:40Z");
    fleet.settle();
    assert_eq!(fleet.works("b"), ["web-0"]);
}

#[test]
fn data_stays_if_the_policy_selects_another_cluster_and_the_object_says_so() {
    let mut fleet = TestFleet::new(0);
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    fleet.deployment("db", &json!({ "replicas": 1, "template": { "spec": { "volumes": volumes } } }));
    fleet.settle();
    fleet.report("a", "db");
    fleet.settle();
    let select = |name: &str| {
        let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": name } });
        let policy = json!({ "apiVersion": FLEET, "kind": "SchedulePolicy", "metadata": { "name": "all" },
                             "spec": { "resourceSelectors": { "labelSelectors": [{}] }, "clusterSelector": selector } });
        FleetChange::Policy(Event::Apply(typed(policy)))
    };
    fleet.observe(select("b"));
    let link = PlacementLink { namespace: "shop".to_owned(), name: format!("{DEPLOYMENT}.db") };
    let events = plan(&link, &fleet.model).events;
    let event = events.iter().find(|event| event.reason == "CannotMove");
    assert!(event.is_some_and(|event| event.is_warning && event.note.contains("copy the data")), "{events:?}");
    fleet.settle();
    assert_eq!((fleet.works("a"), fleet.works("b")), (vec!["db"], vec![]));
    let (reason, message) = fleet.condition(DEPLOYMENT, "db").unwrap_or_default();
    assert_eq!(reason, "CannotMove");
    assert!(message.starts_with("a: the policy or annotation does not select the cluster any more, and "), "{message}");
    fleet.observe(select("a"));
    fleet.settle();
    assert_eq!((fleet.works("a"), fleet.condition(DEPLOYMENT, "db")), (vec!["db"], None));
}

/// A ConfigMap of the fleet states where a kind has its pods. Objects are decided again when it changes, and when it is deleted.
#[test]
fn the_table_of_kinds_is_followed() {
    let mut fleet = TestFleet::new(0);
    let text = |text: &str| text.to_owned();
    let training = PlacedKind {
        group: text("example.com"),
        version: text("v1"),
        kind: text("Training"),
        plural: text("trainings"),
    };
    fleet.model.add_custom(training.clone());
    let table = |count: &str| -> DynamicObject {
        let row = format!("- template: [spec.template]\n  count: [{count}]\n");
        typed(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "keelway-fleet-pod-kinds", "namespace": "kube-system" },
            "data": { "Training.example.com": row },
        }))
    };
    let submit = |fleet: &mut TestFleet, name: &str| {
        let requests = json!({ "resources": { "requests": { "cpu": "1" } } });
        let object: DynamicObject = typed(json!({
            "apiVersion": "example.com/v1", "kind": "Training", "metadata": { "name": name, "namespace": "shop", "uid": name },
            "spec": { "workers": 1, "parts": 1000, "template": { "spec": { "containers": [requests] } } },
        }));
        fleet.observe(FleetChange::Object(training.clone(), Event::Apply(object)));
        fleet.settle();
    };
    let written = |fleet: &mut TestFleet, table: Event<DynamicObject>| {
        fleet.observe(FleetChange::Object(kind("ConfigMap"), table));
        fleet.settle();
    };
    submit(&mut fleet, "before");
    assert_eq!(fleet.works("a"), ["before"], "objects of an unknown kind need no room");
    written(&mut fleet, Event::Apply(table("spec.parts")));
    submit(&mut fleet, "first");
    assert_eq!((fleet.works("a"), fleet.works("b")), (vec!["before"], vec![]), "1000 pods do not fit");
    written(&mut fleet, Event::Apply(table("spec.workers")));
    assert_eq!(fleet.works("a"), ["before", "first"]);
    written(&mut fleet, Event::Apply(table("spec.parts")));
    submit(&mut fleet, "second");
    assert_eq!(fleet.works("a"), ["before", "first"]);
    written(&mut fleet, Event::Delete(table("spec.parts")));
    assert_eq!(fleet.works("a"), ["before", "first", "second"]);
}
