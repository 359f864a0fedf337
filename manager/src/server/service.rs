//! The service `keelway.manager.v1.Documents`.

use std::{collections::BTreeSet, pin::Pin, sync::Arc};

use futures::{Stream, StreamExt, stream};
use keelway_api::{
    Documents, ReadOptions,
    document::DocumentName,
    fault::{Fault, Faults},
};
use keelway_manager_client::proto::{self, documents_server, watch_event::Type};
use keelway_reconciler::secret_faults;
use keelway_stores::directory::{DirectoryStore, EditError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    convert::{document, name_of, wire_outcome},
    peer::SocketPeer,
};

pub(super) struct DocumentsService {
    store: Arc<DirectoryStore>,
    /// Ends watches when the server stops, which would otherwise wait for them.
    stop: CancellationToken,
}

impl DocumentsService {
    pub(super) fn new(store: Arc<DirectoryStore>, stop: CancellationToken) -> Self {
        Self { store, stop }
    }
}

type DocumentStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl documents_server::Documents for DocumentsService {
    type GetStream = DocumentStream<proto::Document>;
    type WatchStream = DocumentStream<proto::WatchEvent>;

    async fn get(&self, request: Request<proto::GetRequest>) -> Result<Response<Self::GetStream>, Status> {
        let wanted = DocumentQuery::of(&request)?;
        let documents = self.store.documents().borrow().clone();
        let names = wanted.missing(&documents).map_or_else(|| Ok(wanted.names_in(&documents)), Err)?;
        let found = stream::iter(names).filter_map(move |name| {
            let found = document(&documents, &name);
            async move { found.map(Ok) }
        });
        Ok(Response::new(Box::pin(found)))
    }

    async fn apply(&self, request: Request<proto::ApplyRequest>) -> Result<Response<proto::ApplyResponse>, Status> {
        let peer = SocketPeer::of(&request)?;
        let asked = ReadOptions { keys: Some(&secret_faults), ..ReadOptions::default() };
        let documents =
            Documents::read_partial(&request.get_ref().documents, asked).map_err(|faults| refused(&faults))?;
        let there = self.store.documents().borrow().clone();
        let denied = documents.all_names().filter_map(|name| {
            let versions = there.get(&name).into_iter().chain(documents.get(&name));
            let why = peer.may_write(&name, versions).err()?;
            let fault = Fault::of("", "you may not write this document", why);
            Some(Fault { document: name.to_string(), ..fault })
        });
        let denied: Vec<Fault> = denied.collect();
        if !denied.is_empty() {
            return Err(Status::permission_denied(Faults(denied).to_string()));
        }
        let applied = self.store.apply(&documents).map_err(failed)?;
        let applied = applied.into_iter().map(|(name, outcome)| proto::Applied {
            name: Some((&name).into()),
            outcome: wire_outcome(outcome).into(),
        });
        Ok(Response::new(proto::ApplyResponse { applied: applied.collect() }))
    }

    async fn delete(&self, request: Request<proto::DeleteRequest>) -> Result<Response<proto::DeleteResponse>, Status> {
        let peer = SocketPeer::of(&request)?;
        let names = names(&request.get_ref().names)?;
        let documents = self.store.documents().borrow().clone();
        for name in &names {
            peer.may_write(name, documents.get(name)).map_err(Status::permission_denied)?;
        }
        let deleted = self.store.delete(&names).map_err(failed)?;
        let deleted = deleted.into_iter().map(|(name, gone)| proto::Deleted { name: Some((&name).into()), gone });
        Ok(Response::new(proto::DeleteResponse { deleted: deleted.collect() }))
    }

    async fn watch(&self, request: Request<proto::GetRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let wanted = DocumentQuery::of(&request)?;
        let mut documents = self.store.documents();
        let first = documents.borrow_and_update().clone();
        let begin = wanted.names_in(&first).into_iter().filter_map(|name| event(Type::Added, document(&first, &name)));
        let begin: Vec<_> = begin.chain(event(Type::Bookmark, Some(proto::Document::default()))).map(Ok).collect();
        let changes = stream::unfold((documents, first, wanted), next_changes)
            .flat_map(|events| stream::iter(events.into_iter().map(Ok)));
        let all = stream::iter(begin).chain(changes).take_until(self.stop.clone().cancelled_owned());
        Ok(Response::new(Box::pin(all)))
    }
}

type WatchSubscription = (watch::Receiver<Arc<Documents>>, Arc<Documents>, DocumentQuery);

/// Waits for a change, and returns all changes since the last call. A slow watcher misses intermediate states.
async fn next_changes(
    (mut documents, before, wanted): WatchSubscription,
) -> Option<(Vec<proto::WatchEvent>, WatchSubscription)> {
    documents.changed().await.ok()?;
    let after = documents.borrow_and_update().clone();
    let old: BTreeSet<DocumentName> = wanted.names_in(&before).into_iter().collect();
    let new: BTreeSet<DocumentName> = wanted.names_in(&after).into_iter().collect();
    let gone = old.difference(&new).filter_map(|name| event(Type::Deleted, document(&before, name)));
    let there = new.iter().filter_map(|name| {
        let kind = match before.get(name).filter(|_| old.contains(name)) {
            None => Type::Added,
            Some(known) if Some(known) != after.get(name) => Type::Modified,
            Some(_) => return None,
        };
        event(kind, document(&after, name))
    });
    let events = gone.chain(there).collect();
    Some((events, (documents, after, wanted)))
}

fn event(kind: Type, document: Option<proto::Document>) -> Option<proto::WatchEvent> {
    document.map(|document| proto::WatchEvent { r#type: kind.into(), document: Some(document) })
}

/// The selection of documents in a request, with its client.
struct DocumentQuery {
    peer: SocketPeer,
    kinds: Vec<String>,
    names: BTreeSet<DocumentName>,
}

impl DocumentQuery {
    fn of(request: &Request<proto::GetRequest>) -> Result<Self, Status> {
        let proto::GetRequest { kinds, names: named } = request.get_ref();
        Ok(Self { peer: SocketPeer::of(request)?, kinds: kinds.clone(), names: names(named)?.into_iter().collect() })
    }

    fn names_in(&self, documents: &Documents) -> Vec<DocumentName> {
        let is_wanted = |name: &DocumentName| {
            (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == name.kind()))
                && (self.names.is_empty() || self.names.contains(name))
                && documents.get(name).is_some_and(|document| self.peer.sees(document))
        };
        documents.all_names().filter(is_wanted).collect()
    }

    fn missing(&self, documents: &Documents) -> Option<Status> {
        let missing: Vec<String> =
            self.names.iter().filter(|name| documents.get(name).is_none()).map(ToString::to_string).collect();
        (!missing.is_empty()).then(|| Status::not_found(format!("not found: {}", missing.join(", "))))
    }
}

fn names(asked: &[proto::DocumentName]) -> Result<Vec<DocumentName>, Status> {
    let known = |name: &proto::DocumentName| {
        let proto::DocumentName { kind, namespace, name: own } = name;
        name_of(name).ok_or_else(|| Status::not_found(format!("{kind} {namespace}/{own} not found")))
    };
    asked.iter().map(known).collect()
}

fn refused(faults: &Faults) -> Status {
    Status::invalid_argument(faults.to_string())
}

fn failed(error: EditError) -> Status {
    match error {
        EditError::Faults(faults) => refused(&faults),
        EditError::NotReady => Status::unavailable(error.to_string()),
        EditError::Write(cause) => Status::aborted(format!("could not write the documents: {cause}")),
    }
}
