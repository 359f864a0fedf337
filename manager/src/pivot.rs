//! A world that moves from one store to another.
//!
//! No machine is asked, and nothing on one changes: ids, ports and the numbers of configs travel with the documents, so that whoever
//! drives the machines next finds them settled. Nobody works on either store meanwhile. All documents are where they go before the first
//! one leaves, and a move that is cut off goes on where it is begun again.

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

/// Where a world moves from, or to. Whoever has one has it alone. What is not said otherwise is so of a stream: nothing of what went
/// through it stays there.
#[async_trait]
pub trait PivotStore: Store {
    /// What it is called, as the command line names it.
    fn title(&self) -> String;

    /// Where its documents have gone, where a move was cut off before all of them had left.
    async fn pivot_target(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Notes that its documents have all arrived elsewhere, so that nobody works on what is left here; or that nothing is left.
    async fn set_pivot_target(&self, _whither: Option<&str>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes what documents need to be saved here.
    async fn prepare(&self, _documents: &Documents) -> Result<(), StoreError> {
        Ok(())
    }

    /// Pauses clusters where [`Store::save`] does not write what people write.
    async fn pause(&self, _clusters: &[ClusterRef]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Takes documents away, with no effect on any machine. Some may be gone already.
    async fn forget(&self, _documents: &Documents) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Why a world stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum PivotError {
    /// A store did not do what it was asked for.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is nothing to move.
    #[error("{0} has no documents")]
    Empty(String),
    /// A move to somewhere else was cut off.
    #[error(
        "the documents of {from} have gone to {target}: finish that first, with keelway pivot --from {from} --to {target}"
    )]
    Left {
        /// Where they were.
        from: String,
        /// Where they are.
        target: String,
    },
    /// What moves does not fit what is there.
    #[error("the documents do not fit those of {to}")]
    Faults {
        /// Where they were to go.
        to: String,
        /// How.
        #[source]
        faults: Faults,
    },
    /// What was written is not what is read.
    #[error("{name} is not in {to} as it was written: nothing was taken away from {from}")]
    Lost {
        /// Which.
        name: DocumentName,
        /// Where it was.
        from: String,
        /// Where it was to go.
        to: String,
    },
}

/// Moves all documents, and tells which.
///
/// # Errors
/// Where something does not fit or is not done, the documents are all where they were; or all where they go, and the move is to be begun
/// again.
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

/// Documents beside those that are there already, of which some may have come with a move that was cut off.
fn joined(documents: &Documents, there: &Documents) -> Result<Documents, Faults> {
    let mut joined = there.clone();
    let mut faults = Vec::new();
    for name in documents.all_names() {
        let Some(document) = documents.get(&name) else { continue };
        if let Some(problem) = there.get(&name).and_then(|there| conflict_reason(document, there)) {
            let help = "take one of both away, or give it another name";
            faults.push(Fault { document: name.to_string(), ..Fault::of("metadata.name", problem, help) });
        }
        joined.put(&name, document.owned());
    }
    if faults.is_empty() {
        faults = joined.faults_between().into_iter().map(|(_, fault)| fault).collect();
    }
    if faults.is_empty() { Ok(joined) } else { Err(Faults(faults)) }
}

/// Why a document does not take the place of the one of its name.
fn conflict_reason(document: DocumentRef<'_>, there: DocumentRef<'_>) -> Option<&'static str> {
    const OTHER: &str = "there is another one of this name already";
    match (document, there) {
        (DocumentRef::Hypervisor(document), DocumentRef::Hypervisor(there)) => {
            let issued = |status: &Option<keelway_api::hypervisor::HypervisorStatus>| {
                let place = |issued: &Applied| (issued.term, issued.generation);
                status.as_ref().and_then(|status| status.issued.as_ref()).map(place)
            };
            if document.spec != there.spec {
                return Some(OTHER);
            }
            (issued(&there.status) > issued(&document.status)).then_some("the one that is there is newer")
        }
        (DocumentRef::Cluster(document), DocumentRef::Cluster(there)) => {
            let same = document.spec == there.spec && there.id().is_none_or(|id| document.id() == Some(id));
            (!same).then_some(OTHER)
        }
        (DocumentRef::ClusterClass(document), DocumentRef::ClusterClass(there)) => {
            let same = document.spec == there.spec && document.is_default() == there.is_default();
            (!same).then_some(OTHER)
        }
        // Whose they are is in their names.
        (DocumentRef::Component(_), DocumentRef::Component(_)) => None,
        (DocumentRef::Secret(document), DocumentRef::Secret(there)) => {
            let ours = document.metadata.namespace.as_deref().is_some_and(|name| name.starts_with("keelway-"));
            ((!ours || is_pull_secret(document)) && document.data != there.data).then_some(OTHER)
        }
        _ => Some(OTHER),
    }
}

/// What of a document is the same in every store, of times their seconds.
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

/// With the fields of a newer release, which a store keeps as well.
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
