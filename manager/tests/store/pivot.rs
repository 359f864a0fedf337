//! Pivots: documents move between stores.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use keelway_api::{Documents, document::DocumentName};
use keelway_reconciler::{Store, StoreError};
use keelway_stores::{
    directory::{DirectoryError, DirectoryStore},
    pivot::{PipeStore, PivotError, PivotStore, pivot},
};

use crate::place::{CLUSTER, Place, WRITTEN, world, written};

const CLASS: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: small, annotations: {keelway.dev/is-default-class: 'true'}}
spec: {versions: [1.37.0]}
";

/// A store that fails once `left` changes are made.
struct Cut<'a> {
    end: &'a dyn PivotStore,
    left: AtomicUsize,
}

impl Cut<'_> {
    fn step(&self) -> Result<(), StoreError> {
        let last = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        last.map(drop).map_err(|_| StoreError { operation: "save", cause: "cut off".into() })
    }
}

#[async_trait]
impl Store for Cut<'_> {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        self.end.load().await
    }

    /// Saves each change by itself, so that a cut can be between any two.
    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        let mut reached = Documents::clone(&*self.end.load().await?);
        for change in documents.changes_since(&reached.clone()) {
            self.step()?;
            reached.make(&change, documents);
            self.end.save(&reached).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl PivotStore for Cut<'_> {
    fn title(&self) -> String {
        self.end.title()
    }

    async fn pivot_target(&self) -> Result<Option<String>, StoreError> {
        self.end.pivot_target().await
    }

    async fn set_pivot_target(&self, target: Option<&str>) -> Result<(), StoreError> {
        self.step()?;
        self.end.set_pivot_target(target).await
    }

    async fn prepare(&self, documents: &Documents) -> Result<(), StoreError> {
        self.step()?;
        self.end.prepare(documents).await
    }

    async fn forget(&self, documents: &Documents) -> Result<(), StoreError> {
        for name in documents.all_names() {
            self.step()?;
            let mut one = Documents::default();
            one.put(&name, documents.get(&name).unwrap().owned());
            self.end.forget(&one).await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_move_and_return() {
    let (one, other) = (Place::new(), Place::new());
    drop(one.with_world().await);
    let (from, to) = (one.open(), other.open());
    let moved = pivot(&from, &to).await.unwrap();
    assert_eq!(written(&moved), written(&world()));
    drop((from, to));
    assert!(one.open().load().await.unwrap().is_empty() && !one.path(CLUSTER).exists());
    let (from, to) = (other.open(), PipeStore::default());
    assert_eq!(written(&from.load().await.unwrap()), written(&world()));
    pivot(&from, &to).await.unwrap();
    assert_eq!(written(&to.documents()), written(&world()));
    drop(from);
    assert!(other.open().load().await.unwrap().is_empty() && !other.path(CLUSTER).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn classes_are_moved() {
    let (one, other) = (Place::new(), Place::new());
    drop(one.with_world().await);
    one.write("clusterclasses/small.yaml", CLASS);
    other.write("clusterclasses/small.yaml", &CLASS.replace("1.37.0", "1.36.3"));
    let error = pivot(&one.open(), &other.open()).await.unwrap_err();
    let PivotError::Faults { faults, .. } = &error else { panic!("{error:?}") };
    assert!(faults.to_string().contains("ClusterClass small: metadata.name: a different document"), "{faults}");
    other.write("clusterclasses/small.yaml", CLASS);
    pivot(&one.open(), &other.open()).await.unwrap();
    assert!(!one.path("clusterclasses/small.yaml").exists());
    assert_eq!(other.open().load().await.unwrap().classes["small"].spec.versions, ["1.37.0"]);
}

/// If a pivot is interrupted at any point, one of both stores holds all documents, and the pivot can continue.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_move_can_be_continued() {
    let mut cuts = 0;
    loop {
        let (one, other) = (Place::new(), Place::new());
        drop(one.with_world().await);
        let cut_off = {
            let (from, to) = (one.open(), other.open());
            let steps = AtomicUsize::new;
            let (left, arrived) = if cuts % 2 == 0 { (cuts / 2, usize::MAX) } else { (usize::MAX, cuts / 2) };
            let (from, to) = (Cut { end: &from, left: steps(left) }, Cut { end: &to, left: steps(arrived) });
            pivot(&from, &to).await.is_err()
        };
        let whole =
            |place: &Place| DirectoryStore::open(place.0.path()).ok().map(|store| async move { store.load().await });
        let mut found = Vec::new();
        for place in [&one, &other] {
            if let Some(load) = whole(place) {
                found.extend(load.await.ok().filter(|documents| written(documents) == written(&world())));
            }
        }
        assert!(!found.is_empty(), "cut {cuts}");
        if one.path("left-for").exists() {
            let refused = DirectoryStore::open(one.0.path()).unwrap_err();
            assert!(matches!(refused, DirectoryError::Left { .. }), "{refused}");
        }
        let (from, to) = (DirectoryStore::open_to_leave(one.0.path()).unwrap(), other.open());
        match pivot(&from, &to).await {
            Ok(_) => {}
            Err(PivotError::Empty(_)) if !cut_off => {}
            Err(error) => panic!("cut {cuts}: {error}"),
        }
        drop((from, to));
        assert!(one.open().load().await.unwrap().is_empty(), "cut {cuts}");
        assert_eq!(written(&other.open().load().await.unwrap()), written(&world()), "cut {cuts}");
        cuts += 1;
        if !cut_off && cuts > 40 {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_document_replaces_another() {
    let (one, other) = (Place::new(), Place::new());
    drop(one.with_world().await);
    other.write(CLUSTER, &WRITTEN.replace("1.37.0", "1.36.3"));
    let (from, to) = (one.open(), other.open());
    let error = pivot(&from, &to).await.unwrap_err();
    let PivotError::Faults { faults, .. } = &error else { panic!("{error}") };
    assert!(faults.to_string().contains("Cluster default/c1: metadata.name: a different document"), "{faults}");
    assert_eq!(written(&from.load().await.unwrap()), written(&world()));
    assert_eq!(to.load().await.unwrap().all_names().collect::<Vec<DocumentName>>().len(), 1);
    assert!(!Path::new(&one.path("left-for")).exists());
    fs::remove_file(other.path(CLUSTER)).unwrap();
    assert!(matches!(pivot(&to, &from).await, Err(PivotError::Faults { .. } | PivotError::Empty(_))));
}
