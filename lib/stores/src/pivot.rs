//! A pivot: moves the documents of an installation from one store to another.
//!
//! A pivot sends no request to a machine and changes nothing on one. Ids, ports and the generations of configs move with the documents, so that
//! the next driver finds the machines settled. No driver works on either store meanwhile. All documents are in the new store before the first
//! one is removed from the old store. If a pivot is interrupted, run it again.

mod directory;
mod kubernetes;
mod pipe;

use std::sync::Arc;

use async_trait::async_trait;
use keelway_api::{
    Documents,
    document::{DocumentName, DocumentRef},
    fault::{Fault, Faults},
    hypervisor::Applied,
    jiff::Timestamp,
    name::ClusterRef,
    registry::is_pull_secret,
};
use keelway_reconciler::{Store, StoreError};
use serde_json::{Value as Json, json};

pub use kubernetes::{LEFT_FOR, ManagementCluster, ManagementClusterError};
pub use pipe::PipeStore;

/// A store that documents can move from or to. The caller has exclusive access to it. The default methods are those of a stream, which keeps
/// nothing.
#[async_trait]
pub trait PivotStore: Store {
    /// Returns the name of the store as the command line writes it.
    fn title(&self) -> String;

    /// Returns the store to which the documents moved, if that pivot was interrupted before all documents were removed here.
    async fn pivot_target(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Records that all documents are in another store, so that no manager works on the rest that is here. `None` records that nothing is left.
    async fn set_pivot_target(&self, _whither: Option<&str>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Creates what the store needs before these documents can be saved.
    async fn prepare(&self, _documents: &Documents) -> Result<(), StoreError> {
        Ok(())
    }

    /// Pauses clusters, if [`Store::save`] does not write the specs of users' documents.
    async fn pause(&self, _clusters: &[ClusterRef]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Removes documents without an effect on any machine. Some may be removed already.
    async fn forget(&self, _documents: &Documents) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Why a pivot failed.
#[derive(Debug, thiserror::Error)]
pub enum PivotError {
    /// A store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The old store has no documents.
    #[error("{0} has no documents")]
    Empty(String),
    /// A pivot to another store was interrupted.
    #[error(
        "the documents of {from} are moving to {target}; finish that move first with keelway pivot --from {from} --to {target}"
    )]
    Left {
        /// The old store of that pivot.
        from: String,
        /// The new store of that pivot.
        target: String,
    },
    /// The documents conflict with those in the new store.
    #[error("the documents conflict with those in {to}")]
    Faults {
        /// The new store.
        to: String,
        /// The conflicts.
        #[source]
        faults: Faults,
    },
    /// A document that was read back from the new store differs from the one that was written.
    #[error("{name} in {to} differs from what was written; nothing was deleted from {from}")]
    Lost {
        /// The document.
        name: DocumentName,
        /// The old store.
        from: String,
        /// The new store.
        to: String,
    },
}

/// Moves all documents. Returns them.
///
/// # Errors
/// If a pivot fails, all documents are still in the old store; or all are in the new store, and the pivot must be run again.
pub async fn pivot(from: &dyn PivotStore, to: &dyn PivotStore) -> Result<Arc<Documents>, PivotError> {
    let left = |from: &dyn PivotStore, target| PivotError::Left { from: from.title(), target };
    if let Some(target) = to.pivot_target().await? {
        return Err(left(to, target));
    }
    match from.pivot_target().await? {
        None => {}
        Some(target) if target == to.title() => {
            let documents = to.load().await?;
            leave(from, &documents).await?;
            return Ok(documents);
        }
        Some(target) => return Err(left(from, target)),
    }
    let documents = from.load().await?;
    if documents.is_empty() {
        return Err(PivotError::Empty(from.title()));
    }
    let joined = joined(&documents, &*to.load().await?);
    let joined = joined.map_err(|faults| PivotError::Faults { to: to.title(), faults })?;
    to.prepare(&documents).await?;
    to.save(&joined).await?;
    let arrived = to.load().await?;
    if let Some(name) =
        documents.all_names().find(|name| comparable_json(arrived.get(name)) != comparable_json(documents.get(name)))
    {
        return Err(PivotError::Lost { name, from: from.title(), to: to.title() });
    }
    from.set_pivot_target(Some(&to.title())).await?;
    leave(from, &documents).await?;
    Ok(documents)
}

async fn leave(from: &dyn PivotStore, documents: &Documents) -> Result<(), PivotError> {
    from.forget(documents).await?;
    Ok(from.set_pivot_target(None).await?)
}

/// Adds documents to those that are there already. An interrupted pivot may have written some of them.
fn joined(documents: &Documents, there: &Documents) -> Result<Documents, Faults> {
    let mut joined = there.clone();
    let mut faults = Vec::new();
    for name in documents.all_names() {
        let Some(document) = documents.get(&name) else { continue };
        if let Some(problem) = there.get(&name).and_then(|there| conflict_reason(document, there)) {
            let help = "delete one of the two documents, or rename one";
            faults.push(Fault { document: name.to_string(), ..Fault::of("metadata.name", problem, help) });
        }
        joined.put(&name, document.owned());
    }
    if faults.is_empty() {
        faults = joined.faults_between().into_iter().map(|(_, fault)| fault).collect();
    }
    if faults.is_empty() { Ok(joined) } else { Err(Faults(faults)) }
}

/// Returns why a document must not replace the one with its name.
fn conflict_reason(document: DocumentRef<'_>, there: DocumentRef<'_>) -> Option<&'static str> {
    const OTHER: &str = "a different document with this name already exists";
    match (document, there) {
        (DocumentRef::Hypervisor(document), DocumentRef::Hypervisor(there)) => {
            let issued = |status: &Option<keelway_api::hypervisor::HypervisorStatus>| {
                let place = |issued: &Applied| (issued.term, issued.generation);
                status.as_ref().and_then(|status| status.issued.as_ref()).map(place)
            };
            if document.spec != there.spec {
                return Some(OTHER);
            }
            (issued(&there.status) > issued(&document.status)).then_some("the existing document is newer")
        }
        (DocumentRef::Cluster(document), DocumentRef::Cluster(there)) => {
            let same = document.spec == there.spec && there.id().is_none_or(|id| document.id() == Some(id));
            (!same).then_some(OTHER)
        }
        (DocumentRef::ClusterClass(document), DocumentRef::ClusterClass(there)) => {
            let same = document.spec == there.spec && document.is_default() == there.is_default();
            (!same).then_some(OTHER)
        }
        // Their namespace contains the cluster's id.
        (DocumentRef::Component(_), DocumentRef::Component(_)) => None,
        (DocumentRef::Secret(document), DocumentRef::Secret(there)) => {
            let ours = document.metadata.namespace.as_deref().is_some_and(|name| name.starts_with("keelway-"));
            ((!ours || is_pull_secret(document)) && document.data != there.data).then_some(OTHER)
        }
        _ => Some(OTHER),
    }
}

/// Returns the parts of a document that are the same in every store, with times in whole seconds.
fn comparable_json(document: Option<DocumentRef<'_>>) -> Json {
    let mut json = match document {
        None => Json::Null,
        Some(document @ DocumentRef::ClusterClass(class)) => json!([spec_and_status(document), class.is_default()]),
        Some(DocumentRef::Secret(document)) => json!([document.data]),
        Some(document) => json!(spec_and_status(document)),
    };
    in_seconds(&mut json);
    json
}

/// Returns spec and status, with the fields of a newer release, which a store keeps as well.
fn spec_and_status(document: DocumentRef<'_>) -> [Json; 2] {
    let mut json = document.json();
    ["spec", "status"].map(|part| json[part].take())
}

fn in_seconds(json: &mut Json) {
    match json {
        Json::Array(items) => items.iter_mut().for_each(in_seconds),
        Json::Object(fields) => fields.values_mut().for_each(in_seconds),
        Json::String(text) => {
            if let Ok(time) = text.parse::<Timestamp>() {
                *text = time.as_second().to_string();
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
