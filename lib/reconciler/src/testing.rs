//! A test of the contract that every store must fulfil.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "it is for tests")]

use keelway_api::{
    Documents, Time,
    condition::{self, ConditionStatus, ConditionValue},
    document::{DocumentName, DocumentRef},
    jiff::Timestamp,
};

use crate::Store;

/// Documents as passes leave them.
const WORLD: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec: {role: Private, endpoint: {unix: {path: /run/containerd/containerd.sock}}, addresses: {private: [10.0.0.1]}}
status: {installation: 00000000000000ff, issued: {term: 1, generation: 7, digest: 0a1b2c}}
---
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default}
spec: {version: 1.37.0}
status: {id: 0123456789abcdef, ingressPort: 20000}
---
apiVersion: keelway.dev/v1alpha1
kind: Component
metadata: {name: etcd-0, namespace: keelway-0123456789abcdef, labels: {keelway.dev/cluster-id: 0123456789abcdef, keelway.dev/component: etcd-0}}
spec:
  cluster: {namespace: default, name: c1}
  clusterId: 0123456789abcdef
  role: etcd
  index: 0
  version: 1.37.0
  hypervisor: hv-1
  ports: {client: 20001, peer: 20002}
  user: 1900000000
  placement: it is the only one
status: {conditions: [{type: Ready, status: 'False', reason: Starting, message: it starts, lastTransitionTime: '2026-11-21T11:00:00Z'}]}
---
apiVersion: v1
kind: Secret
metadata: {name: etcd-0, namespace: keelway-0123456789abcdef, labels: {keelway.dev/cluster-id: 0123456789abcdef}}
type: Opaque
data: {note: bm90ZQ==}
";

/// Returns a machine, and a cluster with a component and a key on it, as passes leave them.
#[must_use]
pub fn world() -> Documents {
    Documents::read(WORLD.as_bytes()).unwrap()
}

/// Returns all documents of a store.
pub async fn load(store: &impl Store) -> Documents {
    Documents::clone(&*store.load().await.unwrap())
}

/// Returns the parts of documents that are the same in every store: spec and status, or the data of a Secret.
#[must_use]
pub fn comparable_documents(documents: &Documents) -> Vec<(DocumentName, serde_json::Value)> {
    let json = |name: &DocumentName| match documents.get(name).unwrap() {
        DocumentRef::ClusterClass(document) => serde_json::json!([document.spec]),
        DocumentRef::Hypervisor(document) => serde_json::json!([document.spec, document.status]),
        DocumentRef::Cluster(document) => serde_json::json!([document.spec, document.status]),
        DocumentRef::Component(document) => serde_json::json!([document.spec, document.status]),
        DocumentRef::Secret(document) => serde_json::json!([document.data]),
    };
    documents.all_names().map(|name| (name.clone(), json(&name))).collect()
}

/// Checks that an empty store returns what was saved last, also after it is opened again. Afterwards it contains the documents of [`world`].
pub async fn check_store<S: Store>(open: impl Fn() -> S) -> S {
    let store = open();
    assert!(load(&store).await.is_empty());
    store.save(&world()).await.unwrap();
    assert_eq!(
        comparable_documents(&load(&store).await),
        comparable_documents(&world()),
        "what it wrote it knows at once"
    );
    drop(store);
    let store = open();
    assert_eq!(comparable_documents(&load(&store).await), comparable_documents(&world()));
    let mut less = load(&store).await;
    less.components.clear();
    less.secrets.clear();
    store.save(&less).await.unwrap();
    assert_eq!(comparable_documents(&load(&store).await), comparable_documents(&less));
    drop(store);
    let store = open();
    let mut more = load(&store).await;
    assert_eq!(comparable_documents(&more), comparable_documents(&less));
    more.components = world().components;
    more.secrets = world().secrets;
    store.save(&more).await.unwrap();
    assert_eq!(comparable_documents(&load(&store).await), comparable_documents(&world()));
    saves_follow_each_other(&store).await;
    store
}

/// Checks that saves can follow each other without a load in between, even if the store rounds times.
async fn saves_follow_each_other(store: &impl Store) {
    let mut documents = load(store).await;
    for nanoseconds in [123_456_789, 987_654_321] {
        let time = Time(Timestamp::new(1_800_000_000, nanoseconds).unwrap());
        for machine in documents.hypervisors.values_mut() {
            machine.status.as_mut().unwrap().last_heartbeat_time = Some(time.clone());
        }
        for cluster in documents.clusters.values_mut() {
            let says = ConditionValue {
                status: ConditionStatus::False,
                reason: "Tried".to_owned(),
                message: nanoseconds.to_string(),
            };
            condition::set(&mut cluster.status.as_mut().unwrap().conditions, "Available", says, None, &time);
        }
        store.save(&documents).await.unwrap();
    }
    let documents = load(store).await;
    let conditions = documents.clusters.values().flat_map(|cluster| &cluster.status.as_ref().unwrap().conditions);
    assert_eq!(conditions.map(|condition| condition.message.as_str()).collect::<Vec<_>>(), ["987654321"]);
}
