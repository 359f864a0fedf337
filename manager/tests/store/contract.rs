//! The behaviour of every store that others write to as well. Each store runs these cases beside its own.

use std::time::Duration;

use keelway_api::{
    Documents, Time,
    cluster::FINALIZER,
    document::DocumentName,
    name::{ClusterRef, HypervisorName, PodName},
};
use keelway_reconciler::{
    ChangingDocuments, Store,
    testing::{check_store, comparable_documents, load, world},
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Many times longer than a change takes to arrive.
const SOON: Duration = Duration::from_secs(30);

const SECOND_MACHINE: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-2}
spec: {role: Private, endpoint: {unix: {path: /run/hv-2/containerd.sock}}, addresses: {private: [10.0.0.2]}}
";
const CLASS: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: small}
spec: {limits: {etcdReplicas: 1}}
";
/// A Cluster that exceeds its class.
const LARGE: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: large, namespace: default}
spec: {version: 1.37.0, className: small, etcd: {replicas: 3}}
";

/// A store, and another writer of the same documents.
pub(crate) trait Subject {
    type Store: Store + ChangingDocuments;
    /// Opens the store again, after the last one was closed. It knows only what it stored.
    fn open(&self) -> Self::Store;
    /// Another writer writes a document without its status.
    fn apply(&self, text: &str);
    /// Another writer removes a document at once, in spite of its finalizers.
    fn take_away(&self, name: &DocumentName);
    /// Returns whether another writer sees the document.
    fn has(&self, name: &DocumentName) -> bool;
    /// Another writer requests the deletion of a Cluster or a Hypervisor.
    fn delete(&self, name: &DocumentName);
    /// A next release writes the documents of these names. In that release, the specs and the statuses of their kinds have a map `ofNextRelease`.
    /// Both contain `fields`.
    fn next_release_writes(&self, names: &[DocumentName], fields: &Value);
}

/// Runs all cases in order, on the same documents.
pub(crate) async fn holds(subject: &impl Subject) {
    let store = check_store(|| subject.open()).await;
    its_own_writes_are_no_news(&store).await;
    what_somebody_else_changed_is_kept(subject, &store).await;
    news_wake(subject, &store).await;
    what_is_keelways_own_is_written_again(subject, &store).await;
    drop(store);
    fields_of_a_newer_release_are_kept(subject).await;
    a_deletion_takes_its_time(subject).await;
    a_machine_goes(subject).await;
    a_class_is_others_to_write(subject).await;
}

pub(crate) fn c1() -> ClusterRef {
    ClusterRef { namespace: "default".to_owned(), name: "c1".to_owned() }
}

/// Loads the documents until `holds` returns true, and returns them.
async fn until(what: &str, store: &(impl Store + ChangingDocuments), holds: impl Fn(&Documents) -> bool) -> Documents {
    let wait = async {
        loop {
            let documents = load(store).await;
            if holds(&documents) {
                return documents;
            }
            store.changed().await;
        }
    };
    timeout(SOON, wait).await.map_err(|_| what).unwrap()
}

/// If the store observes its own writes later, nothing changes.
async fn its_own_writes_are_no_news(store: &(impl Store + ChangingDocuments)) {
    let mut less = load(store).await;
    less.components.clear();
    less.secrets.clear();
    store.save(&less).await.unwrap();
    while timeout(Duration::from_millis(500), store.changed()).await.is_ok() {
        assert_eq!(comparable_documents(&load(store).await), comparable_documents(&less));
    }
    let mut more = load(store).await;
    more.components = world().components;
    more.secrets = world().secrets;
    store.save(&more).await.unwrap();
}

/// A save of stale documents fails and changes nothing.
async fn what_somebody_else_changed_is_kept<S: Subject>(subject: &S, store: &S::Store) {
    let mut documents = load(store).await;
    subject.apply("{apiVersion: keelway.dev/v1alpha1, kind: Cluster, metadata: {name: c1, namespace: default}, spec: {version: 1.37.0, etcd: {replicas: 3}}}");
    let told = |documents: &mut Documents| {
        documents.clusters.get_mut(&c1()).unwrap().status.as_mut().unwrap().endpoints =
            vec!["https://198.51.100.1:20000".to_owned()];
    };
    told(&mut documents);
    let error = store.save(&documents).await.unwrap_err();
    assert!(error.cause.to_string().contains("modified by another program"), "{error}: {}", error.cause);
    let members = |documents: &Documents| documents.clusters[&c1()].spec.etcd.replicas;
    let mut documents = until("somebody else's change", store, |documents| members(documents) == 3).await;
    assert!(documents.clusters[&c1()].status.as_ref().unwrap().endpoints.is_empty());
    told(&mut documents);
    store.save(&documents).await.unwrap();
    let documents = load(store).await;
    assert_eq!((members(&documents), documents.clusters[&c1()].status.as_ref().unwrap().endpoints.len()), (3, 1));
}

async fn news_wake<S: Subject>(subject: &S, store: &S::Store) {
    subject.apply(SECOND_MACHINE);
    let documents = until("another machine", store, |documents| documents.hypervisors.len() == 2).await;
    assert!(
        documents
            .hypervisors
            .values()
            .all(|machine| machine.metadata.generation.is_none_or(|generation| generation == 1))
    );
}

/// If another writer deletes a document of Keelway, the store writes it again: a missing document stops nothing that runs.
async fn what_is_keelways_own_is_written_again<S: Subject>(subject: &S, store: &S::Store) {
    let pod: PodName = "0123456789abcdef/etcd-0".parse().unwrap();
    let component = DocumentName::Component(pod.clone());
    let documents = until_it_is_written_again(subject, store, &component).await;
    assert!(documents.components.contains_key(&pod));
    let documents = until_it_is_written_again(subject, store, &DocumentName::Cluster(c1())).await;
    assert_eq!(documents.clusters[&c1()].id().unwrap().as_str(), "0123456789abcdef");
}

async fn until_it_is_written_again<S: Subject>(subject: &S, store: &S::Store, name: &DocumentName) -> Documents {
    subject.take_away(name);
    let wait = async {
        loop {
            let documents = load(store).await;
            if subject.has(name) {
                return documents;
            }
            store.changed().await;
        }
    };
    timeout(SOON, wait).await.unwrap()
}

/// After a rollback, a store contains fields that this release does not know.
async fn fields_of_a_newer_release_are_kept<S: Subject>(subject: &S) {
    let pod: PodName = "0123456789abcdef/etcd-0".parse().unwrap();
    let names = [
        DocumentName::Cluster(c1()),
        DocumentName::Component(pod.clone()),
        DocumentName::Hypervisor("hv-1".parse().unwrap()),
    ];
    let fields = json!({ "text": "10", "list": [1, { "name": "x" }], "is": true });
    subject.next_release_writes(&names, &fields);
    let are_kept = |documents: &Documents| {
        for name in &names {
            let json = documents.get(name).unwrap().json();
            assert_eq!(
                (&json["spec"]["ofNextRelease"], &json["status"]["ofNextRelease"]),
                (&fields, &fields),
                "{name}"
            );
        }
    };
    let store = subject.open();
    let mut documents = load(&store).await;
    are_kept(&documents);
    // This saves a change of each document, and of the spec that Keelway itself writes of a Component.
    let cluster = documents.clusters.get_mut(&c1()).unwrap();
    cluster.status.as_mut().unwrap().endpoints.clear();
    let component = documents.components.get_mut(&pod).unwrap();
    "another reason".clone_into(&mut component.spec.placement);
    component.status.as_mut().unwrap().conditions.clear();
    let machine = documents.hypervisors.get_mut(&"hv-1".parse().unwrap()).unwrap();
    machine.status.as_mut().unwrap().last_heartbeat_time = Some(Time("2026-01-31T12:00:00Z".parse().unwrap()));
    store.save(&documents).await.unwrap();
    are_kept(&load(&store).await);
    drop(store);
    let store = subject.open();
    let documents = load(&store).await;
    are_kept(&documents);
    let machine = documents.hypervisors.values().next().unwrap();
    assert!(
        documents.components[&pod].spec.placement == "another reason"
            && machine.status.as_ref().unwrap().last_heartbeat_time.is_some()
    );
}

async fn a_deletion_takes_its_time<S: Subject>(subject: &S) {
    let store = subject.open();
    let mut documents = load(&store).await;
    assert!(documents.components.len() == 1 && documents.clusters.len() == 1, "what was written again is there");
    documents.clusters.get_mut(&c1()).unwrap().metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    store.save(&documents).await.unwrap();
    subject.delete(&DocumentName::Cluster(c1()));
    let deleted = |documents: &Documents| documents.clusters.get(&c1()).is_none_or(|cluster| cluster.deleted());
    let mut documents = until("the deletion that was asked for", &store, deleted).await;
    assert_eq!(
        (documents.clusters.len(), documents.components.len()),
        (1, 1),
        "nothing goes before its machine is clean"
    );
    documents.remove_cluster(&c1(), &"0123456789abcdef".parse().unwrap());
    store.save(&documents).await.unwrap();
    assert!(load(&store).await.clusters.is_empty());
    drop(store);
    let documents = load(&subject.open()).await;
    assert!(documents.clusters.is_empty() && documents.components.is_empty());
    assert_eq!(documents.hypervisors.len(), 2);
}

/// A store that keeps a deleted Hypervisor removes it after the documents are saved without it.
async fn a_machine_goes<S: Subject>(subject: &S) {
    let store = subject.open();
    let name: HypervisorName = "hv-2".parse().unwrap();
    let mut documents = load(&store).await;
    let status = documents.hypervisors.get_mut(&name).unwrap().status.get_or_insert_default();
    status.installation = Some("00000000000000ff".parse().unwrap());
    store.save(&documents).await.unwrap();
    subject.delete(&DocumentName::Hypervisor(name.clone()));
    let deleted = |documents: &Documents| documents.hypervisors.get(&name).is_some_and(|machine| machine.deleted());
    let mut documents = until("the deletion that was asked for", &store, deleted).await;
    documents.hypervisors.remove(&name);
    store.save(&documents).await.unwrap();
    drop(store);
    assert_eq!(load(&subject.open()).await.hypervisors.len(), 1);
}

/// A class takes effect at once, and ends when another writer deletes it.
async fn a_class_is_others_to_write<S: Subject>(subject: &S) {
    let store = subject.open();
    let name = DocumentName::ClusterClass("small".to_owned());
    subject.apply(CLASS);
    until("a class", &store, |documents| documents.classes.len() == 1).await;
    subject.apply(LARGE);
    subject.apply(SECOND_MACHINE);
    let documents = until("another machine", &store, |documents| documents.hypervisors.len() == 2).await;
    assert!(documents.clusters.is_empty(), "beyond its class");
    subject.apply(&CLASS.replace("etcdReplicas: 1", "etcdReplicas: 3"));
    until("a Cluster within its class", &store, |documents| documents.clusters.len() == 1).await;
    subject.take_away(&name);
    let documents = until("no class", &store, |documents| documents.classes.is_empty()).await;
    assert!(
        documents.clusters.len() == 1 && !subject.has(&name),
        "what was accepted stays, and nobody puts a class back"
    );
    subject.take_away(&documents.clusters.keys().cloned().map(DocumentName::Cluster).next().unwrap());
    subject.take_away(&DocumentName::Hypervisor("hv-2".parse().unwrap()));
    until("neither", &store, |documents| documents.clusters.is_empty() && documents.hypervisors.len() == 1).await;
}
