//! The directory store, with people and other programs that write to the directory.

use std::{fs, path::Path, time::Duration};

use keelway_api::{
    Documents, ReadOptions, Time,
    document::{Document, DocumentName},
    documents::SecretName,
    jiff::Timestamp,
    name::ClusterRef,
    newer::{FORMAT, FORMAT_ANNOTATION},
};
use keelway_planner::MintRequest;
use keelway_reconciler::{ChangingDocuments, Minter, PkiMinter, Store};
use keelway_stores::directory::{DirectoryError, DirectoryLockError, DirectoryStore};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    contract,
    place::{CLUSTER, MACHINE, Place, WRITTEN, next, world, written},
};

fn replicas(documents: &Documents) -> u32 {
    documents.clusters.values().next().unwrap().spec.etcd.replicas
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_documents_are_loaded_by_the_next_process() {
    let place = Place::new();
    let store = place.with_world().await;
    assert_eq!(written(&store.load().await.unwrap()), written(&world()));
    drop(store);
    let store = place.open();
    assert_eq!(written(&store.load().await.unwrap()), written(&world()));
    let mut less = world();
    less.components.clear();
    store.save(&less).await.unwrap();
    assert!(!place.path("components/keelway-0123456789abcdef/etcd-0.yaml").exists());
    assert_eq!(written(&store.load().await.unwrap()), written(&less));
}

#[tokio::test(flavor = "multi_thread")]
async fn its_own_writes_are_not_changes() {
    let place = Place::new();
    let store = place.with_world().await;
    // Events of the store's own writes may arrive. They must change nothing.
    while timeout(Duration::from_millis(300), store.changed()).await.is_ok() {
        assert_eq!(written(&store.load().await.unwrap()), written(&world()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_has_one_writer() {
    let place = Place::new();
    let store = place.open();
    let second = DirectoryStore::open(place.0.path()).unwrap_err();
    let DirectoryError::Lock(DirectoryLockError::Held { holder, .. }) = &second else { panic!("{second}") };
    assert_eq!(*holder, std::process::id().to_string());
    drop(store);
    drop(place.open());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_a_user_adds_is_a_document() {
    let place = Place::new();
    let store = place.open();
    assert!(store.load().await.unwrap().is_empty());
    place.write(CLUSTER, WRITTEN);
    let documents = next(&store).await;
    assert_eq!(documents.clusters.keys().map(ToString::to_string).collect::<Vec<_>>(), ["c1"]);
    assert_eq!(place.read(CLUSTER), WRITTEN, "nobody writes it before there is something to write");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_kept_when_a_user_rewrites_a_file() {
    let place = Place::new();
    let store = place.with_world().await;
    store.load().await.unwrap();
    place.write(CLUSTER, &WRITTEN.replace("1.37.0", "1.37.0, etcd: {replicas: 3}"));
    let documents = next(&store).await;
    assert_eq!(replicas(&documents), 3);
    let cluster = documents.clusters.values().next().unwrap();
    assert_eq!(cluster.id().unwrap().as_str(), "0123456789abcdef");
    assert_eq!(cluster.metadata.generation, Some(2));
    assert!(place.read(CLUSTER).contains("ingressPort: 20000"), "{}", place.read(CLUSTER));
    assert!(store.refused().is_empty());
}

/// If a file cannot be read, the store does not lose the changes beside it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_file_is_read_later() {
    let place = Place::new();
    let store = place.open();
    assert!(store.load().await.unwrap().is_empty());
    place.write(CLUSTER, WRITTEN);
    let knot = place.path("clusters/default/knot.yaml");
    std::os::unix::fs::symlink("knot.yaml", &knot).unwrap();
    timeout(Duration::from_secs(10), store.changed()).await.unwrap();
    while store.load().await.is_ok() {
        timeout(Duration::from_secs(10), store.changed()).await.unwrap();
    }
    fs::remove_file(knot).unwrap();
    while store.load().await.is_err() {
        timeout(Duration::from_secs(10), store.changed()).await.unwrap();
    }
    assert_eq!(store.load().await.unwrap().clusters.len(), 1);
}

/// If the file of an authority loses its label, the store does not read it as a user's Secret. It keeps the authority as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_keelway_is_not_replaced_by_a_plain_one() {
    let place = Place::new();
    let store = place.open();
    store.load().await.unwrap();
    let mut documents = world();
    let id = documents.clusters.values().find_map(|cluster| cluster.id().cloned()).unwrap();
    let authority = SecretName::of(&id, "kubernetes-ca");
    let minted = [MintRequest::Authority {
        secret: authority.clone(),
        common_name: "kubernetes".to_owned(),
        revokes: false,
        ttl: "87600h".parse().unwrap(),
    }];
    PkiMinter::new(StdRng::seed_from_u64(1)).mint(&mut documents, &minted, Timestamp::now()).unwrap();
    store.save(&documents).await.unwrap();
    drop(store);
    let store = place.open();
    store.load().await.unwrap();
    let file = format!("secrets/keelway-{id}/kubernetes-ca.yaml");
    for labelled in [place.read(&file), documents.text_of(&DocumentName::Secret(authority.clone())).unwrap()] {
        let plain = labelled.replace("keelway.dev/cluster-id", "example.com/cluster-id");
        assert_ne!(plain, labelled);
        place.write(&file, &plain);
        let after = next(&store).await;
        assert_eq!(after.secrets.get(&authority), documents.secrets.get(&authority));
        assert!(after.user_secrets.is_empty());
        assert_eq!(store.refused().len(), 1);
        place.write(&file, &labelled);
        next(&store).await;
        assert!(store.refused().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_file_is_refused_with_its_line_until_it_is_corrected() {
    let place = Place::new();
    let store = place.with_world().await;
    store.load().await.unwrap();
    place.write(CLUSTER, &WRITTEN.replace("version: 1.37.0", "version: 1.37.0, etcd: {replicas: 2, replica: 1}"));
    assert_eq!(written(&next(&store).await), written(&world()));
    let refused = store.refused();
    let told = refused[Path::new(CLUSTER)].to_string();
    assert!(told.contains("clusters/default/c1.yaml, line 4: spec.etcd.replica: "), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
    place.write(CLUSTER, "apiVersion: [");
    assert_eq!(written(&next(&store).await), written(&world()));
    place.write(CLUSTER, &WRITTEN.replace("1.37.0", "1.37.0, etcd: {replicas: 5}"));
    assert_eq!(replicas(&next(&store).await), 5);
    assert!(store.refused().is_empty());
}

/// After a rollback, documents contain fields that this release does not know. If a person adds another unknown field, that is an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_cannot_add_unknown_fields_beside_those_of_a_newer_release() {
    let place = Place::new();
    drop(place.with_world().await);
    let text = place.read(CLUSTER).replace("spec:\n", "spec:\n  ofNextRelease: true\n");
    place.write(CLUSTER, &text);
    {
        let store = place.open();
        assert!(store.load().await.unwrap().clusters.is_empty());
        let told = store.refused()[Path::new(CLUSTER)].to_string();
        assert!(told.contains("spec.ofNextRelease") && told.contains("unknown field"), "{told}");
    }
    let stamped = text.replace("metadata:\n", "metadata:\n  annotations: {keelway.dev/format: '1000'}\n");
    place.write(CLUSTER, &stamped);
    let store = place.open();
    let fields = |documents: &Documents| documents.get(&name_of_cluster()).unwrap().newer_fields();
    assert_eq!(fields(&store.load().await.unwrap()), ["spec.ofNextRelease"]);
    place.write(CLUSTER, &stamped.replace("spec:\n", "spec:\n  replicsa: 3\n"));
    assert_eq!(fields(&next(&store).await), ["spec.ofNextRelease"]);
    let told = store.refused()[Path::new(CLUSTER)].to_string();
    assert!(told.contains("spec.replicsa") && !told.contains("ofNextRelease:"), "{told}");
    // A person may remove such a field.
    place.write(CLUSTER, &stamped.replace("  ofNextRelease: true\n", ""));
    assert!(fields(&next(&store).await).is_empty());
    assert!(store.refused().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_saved_beside_an_invalid_file() {
    let place = Place::new();
    let store = place.with_world().await;
    store.load().await.unwrap();
    place.write(CLUSTER, "half a docu");
    let mut documents = next(&store).await;
    for cluster in documents.clusters.values_mut() {
        cluster.status.as_mut().unwrap().endpoints = vec!["https://198.51.100.1:20000".to_owned()];
    }
    store.save(&documents).await.unwrap();
    assert!(place.read(CLUSTER).contains("198.51.100.1"));
    assert_eq!(place.read("clusters/default/c1.yaml.refused"), "half a docu");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_file_was_never_valid_is_left_out_until_it_is_corrected() {
    let place = Place::new();
    drop(place.with_world().await);
    place.write(CLUSTER, "apiVersion: [");
    let store = place.open();
    let documents = store.load().await.unwrap();
    assert_eq!(documents.clusters.len() + documents.components.len(), 0);
    assert!(!documents.hypervisors.is_empty(), "the others go on");
    assert!(store.refused().contains_key(Path::new(CLUSTER)));
    place.write(CLUSTER, &world().text_of(&name_of_cluster()).unwrap());
    assert_eq!(written(&next(&store).await), written(&world()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_was_never_valid_blocks_only_new_clusters() {
    let (place, new) = (Place::new(), "clusters/default/c2.yaml");
    drop(place.with_world().await);
    place.write("clusterclasses/small.yaml", "apiVersion: [");
    place.write(new, &WRITTEN.replace("c1", "c2"));
    let store = place.open();
    assert_eq!(written(&store.load().await.unwrap()), written(&world()));
    assert!(store.refused()[Path::new(new)].to_string().contains("ClusterClass small"), "{:?}", store.refused());
    let class = "apiVersion: keelway.dev/v1alpha1\nkind: ClusterClass\nmetadata: {name: small, annotations: \
                 {keelway.dev/is-default-class: 'true'}}\nspec: {}\n";
    place.write("clusterclasses/small.yaml", class);
    assert_eq!(next(&store).await.clusters.len(), 2);
}

fn name_of_cluster() -> DocumentName {
    DocumentName::Cluster(ClusterRef { namespace: "default".to_owned(), name: "c1".to_owned() })
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_files_of_a_running_cluster_are_written_again() {
    let place = Place::new();
    let store = place.with_world().await;
    store.load().await.unwrap();
    for path in [CLUSTER, MACHINE, "components/keelway-0123456789abcdef/etcd-0.yaml"] {
        fs::remove_file(place.path(path)).unwrap();
        // The events of the store's own writes arrive first.
        while !place.path(path).exists() {
            assert_eq!(written(&next(&store).await), written(&world()), "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_file_removes_a_cluster_that_was_never_reconciled() {
    let place = Place::new();
    let store = place.open();
    place.write(CLUSTER, WRITTEN);
    assert_eq!(next(&store).await.clusters.len(), 1);
    fs::remove_file(place.path(CLUSTER)).unwrap();
    assert!(next(&store).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_edit_is_not_overwritten() {
    let place = Place::new();
    let store = place.with_world().await;
    let mut documents = Documents::clone(&store.load().await.unwrap());
    let edited = WRITTEN.replace("1.37.0", "1.37.0, etcd: {replicas: 3}");
    place.write(CLUSTER, &edited);
    for cluster in documents.clusters.values_mut() {
        cluster.status.as_mut().unwrap().endpoints = vec!["https://198.51.100.1:20000".to_owned()];
    }
    let error = store.save(&documents).await.unwrap_err();
    assert!(error.cause.to_string().contains("modified by another program"), "{}", error.cause);
    assert_eq!(place.read(CLUSTER), edited);
    assert_eq!(replicas(&next(&store).await), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_a_wrong_name_is_refused() {
    let place = Place::new();
    let store = place.open();
    place.write("clusters/default/c2.yaml", WRITTEN);
    let error = timeout(Duration::from_secs(10), store.changed()).await;
    assert!(error.is_ok());
    assert!(store.load().await.unwrap_or_default().is_empty());
    let told = store.refused()[Path::new("clusters/default/c2.yaml")].to_string();
    assert!(told.contains("line 3: metadata.name: ") && told.contains("clusters/default/c1.yaml"), "{told}");
}

impl contract::Subject for Place {
    type Store = DirectoryStore;

    fn open(&self) -> DirectoryStore {
        Place::open(self)
    }

    fn apply(&self, text: &str) {
        let (name, _) = Document::read(text.as_bytes(), "", ReadOptions::default()).unwrap();
        self.write(&file_of(&name), text);
    }

    fn take_away(&self, name: &DocumentName) {
        fs::remove_file(self.path(file_of(name))).unwrap();
    }

    fn has(&self, name: &DocumentName) -> bool {
        self.path(file_of(name)).exists()
    }

    fn delete(&self, name: &DocumentName) {
        let path = file_of(name);
        let (_, mut document) = Document::read(self.read(&path).as_bytes(), "", ReadOptions::default()).unwrap();
        let metadata = match &mut document {
            Document::Cluster(cluster) => &mut cluster.metadata,
            Document::Hypervisor(machine) => &mut machine.metadata,
            Document::ClusterClass(_) | Document::Component(_) | Document::Secret(_) => panic!("{name} is not marked"),
        };
        metadata.deletion_timestamp = Some(Time("2026-01-31T12:00:00Z".parse().unwrap()));
        self.write(&path, &document.as_ref().text());
    }

    fn next_release_writes(&self, names: &[DocumentName], fields: &Value) {
        for name in names {
            let path = file_of(name);
            let (_, document) = Document::read(self.read(&path).as_bytes(), "", ReadOptions::default()).unwrap();
            let mut json = document.as_ref().json();
            json["metadata"]["annotations"][FORMAT_ANNOTATION] = json!((FORMAT + 1).to_string());
            json["spec"]["ofNextRelease"] = fields.clone();
            json["status"]["ofNextRelease"] = fields.clone();
            self.write(&path, &json.to_string());
        }
    }
}

fn file_of(name: &DocumentName) -> String {
    let kind = name.kind().to_lowercase();
    let folder = if kind.ends_with('s') { format!("{kind}es") } else { format!("{kind}s") };
    let parts = [Some(folder), name.namespace(), Some(format!("{}.yaml", name.name()))];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_a_store() {
    contract::holds(&Place::new()).await;
}
