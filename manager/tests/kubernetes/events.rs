//! The Events that the manager records, as `kubectl` shows them.

use std::{sync::Arc, time::Duration};

use keelway_api::{
    Cluster, Documents, ReadOptions, Time,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    document::Document,
    jiff::Timestamp,
    name::ClusterRef,
};
use keelway_manager::{Reports, metrics::ManagerMetrics};
use keelway_reconciler::{ChangingDocuments, Store, Watcher};
use keelway_stores::{DocumentSource, kubernetes::KubernetesStore};
use kube::Client;
use serde_json::Value as Json;
use tokio::time::timeout;

use crate::{kubectl::Kubectl, plane::Plane, wait};

const ID: &str = "0000000000000e7e";
const CLUSTER: &str =
    "{apiVersion: keelway.dev/v1alpha1, kind: Cluster, metadata: {name: told}, spec: {version: 1.37.0}}";
const MACHINE: &str = "{apiVersion: keelway.dev/v1alpha1, kind: Hypervisor, metadata: {name: told-1}, spec: {role: Private, \
                       endpoint: {agent: {address: '10.0.0.77:7443'}}, addresses: {private: [10.0.0.77]}}}";
const COMPONENT: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Component
metadata: {name: etcd-0, namespace: keelway-0000000000000e7e, labels: {keelway.dev/cluster-id: 0000000000000e7e, keelway.dev/component: etcd-0}}
spec:
  cluster: {namespace: default, name: told}
  clusterId: 0000000000000e7e
  role: etcd
  index: 0
  version: 1.37.0
  hypervisor: told-1
  ports: {client: 20001, peer: 20002}
  user: 1900000000
  placement: it is the only one
status: {conditions: [{type: Ready, status: 'False', reason: Starting, message: it starts, lastTransitionTime: '2026-11-21T11:00:00Z'}]}
";

/// The parts of a manager that store documents and record Events.
struct Manager {
    store: Arc<KubernetesStore>,
    reports: Reports,
}

impl Manager {
    fn start(client: Client) -> Self {
        let store = Arc::new(KubernetesStore::open(client));
        let kept: Arc<dyn DocumentSource> = store.clone();
        let metrics = Arc::new(ManagerMetrics::new(kept, Timestamp::now()));
        Self { reports: Reports::new(metrics).with_events(store.event_sender()), store }
    }

    /// Does what a pass does: waits for the documents, saves a change of them, and reports it.
    async fn pass(&mut self, change: impl Fn(&mut Documents)) {
        let before = loop {
            let loaded = self.store.load().await.unwrap();
            if loaded.clusters.contains_key(&name()) && loaded.hypervisors.keys().any(|name| name.as_str() == "told-1")
            {
                break loaded;
            }
            timeout(Duration::from_secs(30), self.store.changed()).await.unwrap();
        };
        let mut after = Documents::clone(&before);
        change(&mut after);
        self.store.save(&after).await.unwrap();
        self.reports.saved(&before, &after);
    }
}

fn name() -> ClusterRef {
    ClusterRef { namespace: "default".to_owned(), name: "told".to_owned() }
}

fn cluster(documents: &mut Documents) -> &mut Cluster {
    documents.clusters.get_mut(&name()).unwrap()
}

fn says(documents: &mut Documents, kind: &str, (status, reason): (ConditionStatus, ConditionReason)) {
    let message = format!("it is {reason:?}");
    let verdict = ConditionValue { status, reason: reason.as_str().to_owned(), message };
    let status = cluster(documents).status.get_or_insert_default();
    condition::set(&mut status.conditions, kind, verdict, None, &Time(Timestamp::now()));
}

/// Returns the Events of an object, as `REASON COUNT`.
fn events(kubectl: &Kubectl, object: &str) -> Vec<String> {
    let selector = format!("regarding.name={object}");
    let events = ["get", "events.events.k8s.io", "-n", "default", "--field-selector", &selector, "-o", "json"];
    let list: Json = serde_json::from_str(&kubectl.says(&events)).unwrap();
    let count = |event: &Json| event["series"]["count"].as_i64().unwrap_or(1);
    let each = list["items"].as_array().unwrap().iter();
    let mut told: Vec<String> =
        each.map(|event| format!("{} {}", event["reason"].as_str().unwrap(), count(event))).collect();
    told.sort();
    told
}

async fn told(kubectl: &Kubectl, object: &str, expected: &[&str]) {
    wait::until(&format!("{object} tells {expected:?}"), async || events(kubectl, object) == expected).await;
}

pub(crate) async fn are_told_once(plane: &Plane, kubectl: &Kubectl) {
    kubectl.does(&["apply", "-f", "-"], CLUSTER);
    kubectl.does(&["apply", "-f", "-"], MACHINE);
    let mut manager = Manager::start(plane.admin().await);
    manager
        .pass(|documents| {
            let status = cluster(documents).status.get_or_insert_default();
            status.id = Some(ID.parse().unwrap());
            status.ingress_port = Some(20000);
            says(documents, "Progressing", (ConditionStatus::True, ConditionReason::Starting));
            let asked = ReadOptions { is_complete_world: true, ..ReadOptions::default() };
            let (component, document) = Document::read(COMPONENT.as_bytes(), "", asked).unwrap();
            documents.put(&component, document);
        })
        .await;
    told(kubectl, "told", &["ComponentPlaced 1", "Starting 1"]).await;
    what_people_see(kubectl);

    // The next manager finds the Events of the first one.
    let mut manager = Manager::start(plane.admin().await);
    manager.pass(|_| ()).await;
    manager.pass(|documents| says(documents, "Progressing", (ConditionStatus::False, ConditionReason::Blocked))).await;
    told(kubectl, "told", &["Blocked 1", "ComponentPlaced 1", "Starting 1"]).await;

    // An event that repeats is one Event with a count.
    for _ in 0..2 {
        manager
            .pass(|documents| says(documents, "Progressing", (ConditionStatus::True, ConditionReason::Changing)))
            .await;
        manager
            .pass(|documents| says(documents, "Progressing", (ConditionStatus::False, ConditionReason::Blocked)))
            .await;
    }
    told(kubectl, "told", &["Blocked 3", "Changing 2", "ComponentPlaced 1", "Starting 1"]).await;
    a_refusal_is_told_once(plane, kubectl).await;
}

fn what_people_see(kubectl: &Kubectl) {
    let described = kubectl.says(&["describe", "kwc", "told"]);
    let placed = "etcd-0 is placed on told-1: it is the only one";
    assert!(described.contains("ComponentPlaced") && described.contains(placed), "{described}");
    assert!(described.contains("keelway-manager"), "{described}");
    let listed = kubectl.says(&["events", "--for", "kwc/told"]);
    assert!(listed.contains("Normal") && listed.contains(placed), "{listed}");
    println!("{listed}");
}

/// If two managers refuse the same document, one after the other, there is one Event.
async fn a_refusal_is_told_once(plane: &Plane, kubectl: &Kubectl) {
    let nowhere = "{apiVersion: keelway.dev/v1alpha1, kind: Hypervisor, metadata: {name: told-2}, spec: {role: Private, \
                   endpoint: {agent: {dialsOut: true, via: hv-9}}, addresses: {private: [10.0.0.78]}}}";
    kubectl.does(&["apply", "-f", "-"], nowhere);
    for _ in 0..2 {
        let store = KubernetesStore::open(plane.admin().await);
        store.load().await.unwrap();
        kubectl.says(&["wait", "--for=condition=Accepted=false", "hv/told-2", "--timeout=30s"]);
        told(kubectl, "told-2", &["Invalid 1"]).await;
    }
    let listed = kubectl.says(&["describe", "hv", "told-2"]);
    assert!(listed.contains("has no effect (spec.endpoint.agent.via)"), "{listed}");
    kubectl.says(&["delete", "hv", "told-2"]);
}
