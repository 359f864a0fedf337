//! Requests to a manager on its Unix socket.

use std::{os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use futures::{Stream, TryStreamExt};
use keelway_api::{Documents, ReadOptions, document::DocumentName, documents::SecretName, name::ClusterRef};
use keelway_manager::server::{ManagerUnixSocket, serve};
use keelway_manager_client::{
    client::{DocumentSelection, ManagerClient, ManagerClientError},
    proto::{self, Outcome},
};
use keelway_reconciler::{ChangingDocuments, Store};
use keelway_stores::directory::DirectoryStore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::place::{CLUSTER, MACHINE, Place, WRITTEN, next, world, written};

/// A manager's socket in front of a store.
struct Served {
    place: Place,
    store: Arc<DirectoryStore>,
    client: ManagerClient,
    stop: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Served {
    async fn new() -> Self {
        let place = Place::new();
        let store = Arc::new(place.with_world().await);
        let path = place.path("manager.sock");
        let listener = ManagerUnixSocket::bind(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, store.clone(), stop.clone()));
        Self { client: ManagerClient::new(&path), place, store, stop }
    }

    async fn everything(&mut self) -> Documents {
        let text = self.client.get(&DocumentSelection::default()).await.unwrap();
        Documents::read_partial(&text, ReadOptions::default()).unwrap()
    }
}

fn c1() -> DocumentName {
    DocumentName::Cluster(ClusterRef { namespace: "default".to_owned(), name: "c1".to_owned() })
}

fn outcomes(applied: &[proto::Applied]) -> Vec<(String, Outcome)> {
    applied.iter().map(|applied| (applied.name.clone().unwrap().name, applied.outcome())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn get_returns_the_selected_documents() {
    let mut served = Served::new().await;
    assert_eq!(written(&served.everything().await), written(&world()));
    let clusters = DocumentSelection { kinds: vec!["Cluster".to_owned()], names: Vec::new() };
    let found = served.client.get(&clusters).await.unwrap();
    assert_eq!(Documents::read_partial(&found, ReadOptions::default()).unwrap().names().collect::<Vec<_>>(), [c1()]);
    let missing = "c2".to_owned();
    let c2 = DocumentName::Cluster(ClusterRef { namespace: "default".to_owned(), name: missing });
    let error = served.client.get(&DocumentSelection { kinds: Vec::new(), names: vec![c2] }).await.unwrap_err();
    assert!(matches!(&error, ManagerClientError::NotFound(what) if what == "not found: Cluster default/c2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn applied_documents_are_like_written_files() {
    let mut served = Served::new().await;
    // The events of the store's own writes may still be on their way.
    served.store.load().await.unwrap();
    let more = format!("{WRITTEN}---\n{}", WRITTEN.replace("name: c1", "name: c2"));
    let applied = served.client.apply(more.into_bytes()).await.unwrap();
    assert_eq!(outcomes(&applied), [("c1".into(), Outcome::Unchanged), ("c2".into(), Outcome::Created)]);
    let documents = next(&served.store).await;
    assert_eq!(documents.clusters.len(), 2);
    assert!(documents.clusters.values().next().unwrap().id().is_some(), "its status is as it was");
    assert!(served.place.read("clusters/default/c2.yaml").contains("1.37.0"));

    let edited = WRITTEN.replace("1.37.0", "1.37.0, etcd: {replicas: 3}");
    let applied = served.client.apply(edited.into_bytes()).await.unwrap();
    assert_eq!(outcomes(&applied), [("c1".into(), Outcome::Configured)]);
    assert!(served.place.read(CLUSTER).contains("ingressPort: 20000"));
}

/// A pass that began before a request cannot undo it. The pass can still save changes of other documents.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_during_a_pass_is_kept() {
    let mut served = Served::new().await;
    let loaded = served.store.load().await.unwrap();
    served.client.delete(&[c1()]).await.unwrap();
    let mut documents = Documents::clone(&loaded);
    for cluster in documents.clusters.values_mut() {
        cluster.status.as_mut().unwrap().endpoints = vec!["https://198.51.100.1:20000".to_owned()];
    }
    let error = served.store.save(&documents).await.unwrap_err();
    assert!(error.cause.to_string().contains("modified by another program"), "{}", error.cause);
    assert!(next(&served.store).await.clusters.values().all(|cluster| cluster.deleted()));

    let loaded = served.store.load().await.unwrap();
    served.client.apply(WRITTEN.replace("name: c1", "name: c2").into_bytes()).await.unwrap();
    let mut documents = Documents::clone(&loaded);
    documents.components.clear();
    served.store.save(&documents).await.unwrap();
    let found = served.everything().await;
    assert_eq!((found.clusters.len(), found.components.len()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_with_an_invalid_document_changes_nothing() {
    let mut served = Served::new().await;
    let sound = WRITTEN.replace("name: c1", "name: c2");
    let broken =
        WRITTEN.replace("name: c1", "name: c3").replace("version: 1.37.0", "version: 1.37.0, etcd: {replica: 3}");
    let error = served.client.apply(format!("{sound}---\n{broken}").into_bytes()).await.unwrap_err();
    let told = error.to_string();
    assert!(
        matches!(error, ManagerClientError::Refused(_))
            && told.contains("document 2 (Cluster c3), line 9: spec.etcd.replica"),
        "{told}"
    );
    // This document is valid by itself, but another cluster has its id.
    let copied = world().text_of(&c1()).unwrap().replace("name: c1", "name: c4");
    let error = served.client.apply(copied.into_bytes()).await.unwrap_err();
    assert!(error.to_string().contains("status.id"), "{error}");
    assert_eq!(written(&served.everything().await), written(&world()));
    assert!(!served.place.path("clusters/default/c2.yaml").exists());
}

/// Regression: a Secret in the namespace `../hypervisors` was "created", and the store then had a file `hypervisors/x.yaml`.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_written_only_to_its_directory() {
    let mut served = Served::new().await;
    let outside = served.place.path("outside");
    for namespace in ["../hypervisors", "..", outside.to_str().unwrap(), "a/b", "."] {
        let secret = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: x, namespace: {namespace:?}}}\ndata: {{a: YQ==}}\n"
        );
        let error = served.client.apply(secret.into_bytes()).await.unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, ManagerClientError::Refused(_)) && told.contains("metadata.namespace"), "{told}");
        assert_eq!(told.matches("RFC 1123").count(), 1, "{told}");
    }
    assert!(!served.place.path("hypervisors/x.yaml").exists() && !outside.exists());
    assert_eq!(written(&served.everything().await), written(&world()));
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_marks_running_clusters_and_removes_others() {
    let mut served = Served::new().await;
    served.client.apply(WRITTEN.replace("name: c1", "name: c2").into_bytes()).await.unwrap();
    let c2 = DocumentName::Cluster(ClusterRef { namespace: "default".to_owned(), name: "c2".to_owned() });
    let deleted = served.client.delete(&[c1(), c2]).await.unwrap();
    assert_eq!(deleted.iter().map(|deleted| deleted.gone).collect::<Vec<_>>(), [false, true]);
    assert!(served.place.read(CLUSTER).contains("deletionTimestamp"));
    assert!(!served.place.path("clusters/default/c2.yaml").exists());
    // Another document still refers to it.
    let error = served.client.delete(&[DocumentName::Hypervisor("hv-1".parse().unwrap())]).await.unwrap_err();
    assert!(error.to_string().contains("hv-1"), "{error}");
    assert!(served.place.path(MACHINE).exists());
}

/// The store would write such documents again.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_keelway_cannot_be_deleted() {
    let mut served = Served::new().await;
    let mut documents = Documents::clone(&served.store.load().await.unwrap());
    let component = documents.components.keys().next().unwrap().clone();
    let secret = SecretName::of(&component.cluster, "kubernetes-ca");
    documents.put_secret_values(&secret, [("bundle.crt".to_owned(), keelway_api::ByteString(b"one".to_vec()))]);
    served.store.save(&documents).await.unwrap();
    let own = [DocumentName::Secret(secret), DocumentName::Component(component)];
    let error = served.client.delete(&own).await.unwrap_err().to_string();
    assert!(
        error.contains("Secrets of clusters are managed by Keelway") && error.contains("Components are managed by"),
        "{error}"
    );
    assert_eq!(written(&served.everything().await), written(&documents));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_reports_each_change() {
    let mut served = Served::new().await;
    let wanted = DocumentSelection { kinds: vec!["Cluster".to_owned()], names: Vec::new() };
    let mut events = Box::pin(served.client.watch(&wanted).await.unwrap());
    assert_eq!(told(&mut events).await, ("TYPE_ADDED", "c1".to_owned()));
    assert_eq!(told(&mut events).await.0, "TYPE_BOOKMARK");
    let two = WRITTEN.replace("name: c1", "name: c2");
    served.client.apply(two.clone().into_bytes()).await.unwrap();
    assert_eq!(told(&mut events).await, ("TYPE_ADDED", "c2".to_owned()));
    served.place.write("clusters/default/c2.yaml", &two.replace("1.37.0", "1.37.0, etcd: {replicas: 3}"));
    timeout(Duration::from_secs(10), served.store.changed()).await.unwrap();
    served.store.load().await.unwrap();
    assert_eq!(told(&mut events).await, ("TYPE_MODIFIED", "c2".to_owned()));
    let c2 = DocumentName::Cluster(ClusterRef { namespace: "default".to_owned(), name: "c2".to_owned() });
    served.client.delete(&[c2]).await.unwrap();
    assert_eq!(told(&mut events).await, ("TYPE_DELETED", "c2".to_owned()));
}

async fn told(
    events: &mut (impl Stream<Item = Result<proto::WatchEvent, ManagerClientError>> + Unpin),
) -> (&'static str, String) {
    let event = timeout(Duration::from_secs(10), events.try_next()).await.unwrap().unwrap().unwrap();
    let name = event.document.as_ref().and_then(|document| document.name.clone()).unwrap_or_default();
    (event.r#type().as_str_name(), name.name)
}

#[tokio::test]
async fn a_missing_manager_is_reported_with_its_socket() {
    let place = Place::new();
    let path = place.path("manager.sock");
    let error = ManagerClient::new(&path).get(&DocumentSelection::default()).await.unwrap_err();
    assert!(
        matches!(&error, ManagerClientError::Unavailable { .. }) && error.to_string().contains("manager.sock: "),
        "{error}"
    );
}
