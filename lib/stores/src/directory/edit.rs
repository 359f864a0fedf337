//! Edits of documents through the manager's socket. They have the same effect as edits of files, and each request is atomic.

use std::{error::Error, sync::Arc};

use keelway_api::{
    Documents, Time,
    document::{Document, DocumentName, DocumentRef},
    fault::{Fault, Faults},
    jiff::Timestamp,
    name::NAMESPACE_PREFIX,
};
use tokio::task::block_in_place;

use super::DirectoryStore;
use crate::{
    accept::{AcceptedDocuments, ChangedFiles, StatusOwner, accept},
    document_paths::{name_of, path_of},
};

/// Why a request had no effect.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// A file of the store was never valid. The manager's log names the file.
    #[error("the store has invalid files; the log of the manager names them")]
    NotReady,
    /// The documents conflict with existing ones.
    #[error(transparent)]
    Faults(Faults),
    /// The documents could not be written.
    #[error("could not write the documents")]
    Write(#[source] Box<dyn Error + Send + Sync>),
}

/// The result for one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditOutcome {
    /// The document did not exist.
    Created,
    /// The document changed.
    Configured,
    /// The document was the same before.
    Unchanged,
}

impl DirectoryStore {
    /// Writes documents. If a document exists, its status is kept.
    ///
    /// # Errors
    /// A document conflicts with others, or the store is not ready. Nothing is changed then.
    pub fn apply(&self, documents: &Documents) -> Result<Vec<(DocumentName, EditOutcome)>, EditError> {
        let wanted: Vec<DocumentName> = documents.all_names().collect();
        let text = |name: &DocumentName| documents.text_of(name).unwrap_or_default().into_bytes();
        let found: ChangedFiles = wanted.iter().map(|name| (path_of(name), Some(text(name)))).collect();
        let (before, after) = self.edit(&found)?;
        let outcome = |name: &DocumentName| match (before.get(name), after.get(name)) {
            (None, _) => EditOutcome::Created,
            (before, after) if before == after => EditOutcome::Unchanged,
            _ => EditOutcome::Configured,
        };
        Ok(wanted.into_iter().map(|name| (name.clone(), outcome(&name))).collect())
    }

    /// Requests the deletion of documents. A document with components on machines is marked, and later passes remove it. Returns for each document
    /// whether it is removed already.
    ///
    /// # Errors
    /// Another document refers to one of them, a document does not exist, or the store is not ready. Nothing is changed then.
    pub fn delete(&self, names: &[DocumentName]) -> Result<Vec<(DocumentName, bool)>, EditError> {
        let documents = self.ready()?;
        let mut found = ChangedFiles::new();
        let mut faults = Vec::new();
        for name in names {
            match documents.get(name) {
                None => faults
                    .push(named(name, Fault::of("metadata.name", "not found", "list documents with `keelway get`"))),
                Some(DocumentRef::Component(_)) => faults.push(named(
                    name,
                    Fault::of(
                        "metadata.name",
                        "Components are managed by Keelway",
                        "change the replicas of its Cluster, or delete the Cluster",
                    ),
                )),
                Some(DocumentRef::Secret(_)) if name.namespace().is_some_and(|of| of.starts_with(NAMESPACE_PREFIX)) => {
                    faults.push(named(
                        name,
                        Fault::of(
                            "metadata.name",
                            "Secrets of clusters are managed by Keelway",
                            "delete the Cluster, which also deletes its Secrets",
                        ),
                    ));
                }
                Some(document) => {
                    found.insert(path_of(name), marked(document).map(|document| document.as_ref().text().into_bytes()));
                }
            }
        }
        if !faults.is_empty() {
            return Err(EditError::Faults(Faults(faults)));
        }
        let (_, after) = self.edit(&found)?;
        Ok(names.iter().map(|name| (name.clone(), after.get(name).is_none())).collect())
    }

    fn ready(&self) -> Result<Arc<Documents>, EditError> {
        self.held().world.clone().ok_or(EditError::NotReady)
    }

    /// Applies files. Returns the documents before and after.
    fn edit(&self, found: &ChangedFiles) -> Result<(Arc<Documents>, Arc<Documents>), EditError> {
        block_in_place(|| {
            let mut held = self.held();
            let before = held.world.clone().ok_or(EditError::NotReady)?;
            let AcceptedDocuments { documents, refused, rewrite: _ } =
                accept(Some(&before), found, StatusOwner::Reader);
            if !refused.is_empty() {
                let faults = refused.into_iter().flat_map(|(path, faults)| {
                    let name = name_of(&path);
                    faults.0.into_iter().map(move |fault| match &name {
                        Some(name) => named(name, fault),
                        None => fault,
                    })
                });
                return Err(EditError::Faults(Faults(faults.collect())));
            }
            let after = Arc::new(documents.ok_or(EditError::NotReady)?);
            let made = self.make(&mut held, &before, &after.changes_since(&before), &after);
            self.watch.wake();
            made.map_err(EditError::Write)?;
            Ok((before, after))
        })
    }
}

fn named(name: &DocumentName, fault: Fault) -> Fault {
    Fault { document: name.to_string(), line: 0, ..fault }
}

/// Returns the document with a deletion timestamp, if its deletion takes time; `None` if it can be removed at once.
fn marked(document: DocumentRef<'_>) -> Option<Document> {
    match document {
        DocumentRef::Cluster(cluster) if cluster.id().is_some() => {
            let mut cluster = cluster.clone();
            cluster.metadata.deletion_timestamp.get_or_insert(Time(Timestamp::now()));
            Some(Document::Cluster(cluster))
        }
        DocumentRef::ClusterClass(_)
        | DocumentRef::Cluster(_)
        | DocumentRef::Hypervisor(_)
        | DocumentRef::Component(_)
        | DocumentRef::Secret(_) => None,
    }
}
