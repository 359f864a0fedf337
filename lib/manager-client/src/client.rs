//! A client for the socket of a manager.

use std::{
    io,
    path::{Path, PathBuf},
};

use futures::{Stream, StreamExt, TryStreamExt};
use hyper_util::rt::TokioIo;
use keelway_api::document::DocumentName;
use keelway_base::error_chain::root_cause;
use tokio::net::UnixStream;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    MAX_MESSAGE,
    proto::{self, documents_client::DocumentsClient},
};

/// The default path of the manager's socket.
pub const DEFAULT_SOCKET: &str = "/run/keelway-manager/manager.sock";

/// Why a request to a manager failed.
#[derive(Debug, thiserror::Error)]
pub enum ManagerClientError {
    /// No manager listens on the socket, or this user may not connect.
    #[error("no manager responds on {}: {why}", socket.display())]
    Unavailable {
        /// The path of the socket.
        socket: PathBuf,
        /// The cause.
        why: String,
    },
    /// The manager refused the request and changed nothing. The text has one line for each fault.
    #[error("{0}")]
    Refused(String),
    /// A document does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The manager accepted the request and could not carry it out.
    #[error("the manager failed: {0}")]
    Failed(String),
}

/// A client of one manager.
#[derive(Debug, Clone)]
pub struct ManagerClient {
    socket: PathBuf,
    documents: DocumentsClient<Channel>,
}

/// Selects documents by kind and by name. An empty selection selects all documents.
#[derive(Debug, Clone, Default)]
pub struct DocumentSelection {
    /// The selected kinds; empty for all.
    pub kinds: Vec<String>,
    /// The selected names; empty for all.
    pub names: Vec<DocumentName>,
}

impl ManagerClient {
    /// Returns a client for this socket. Does not connect.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_: http::Uri| {
            let dialling = UnixStream::connect(path.clone());
            async { Ok::<_, io::Error>(TokioIo::new(dialling.await?)) }
        });
        // gRPC servers expect a host name, although none is needed to connect to a socket.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        let documents =
            DocumentsClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
        Self { socket: socket.to_owned(), documents }
    }

    /// Returns the current documents as one YAML text.
    ///
    /// # Errors
    /// A document with one of the names does not exist, or no manager responds.
    pub async fn get(&mut self, wanted: &DocumentSelection) -> Result<Vec<u8>, ManagerClientError> {
        let found = self.documents.get(wanted.request()).await.map_err(|status| self.failed(&status))?;
        let mut text = String::new();
        let mut found = found.into_inner();
        while let Some(document) = found.try_next().await.map_err(|status| self.failed(&status))? {
            text.push_str("---\n");
            text.push_str(&document.text);
        }
        Ok(text.into_bytes())
    }

    /// Writes documents: all of them, or none.
    ///
    /// # Errors
    /// The documents conflict with existing ones, or no manager responds.
    pub async fn apply(&mut self, documents: Vec<u8>) -> Result<Vec<proto::Applied>, ManagerClientError> {
        let applied = self.documents.apply(proto::ApplyRequest { documents }).await;
        Ok(applied.map_err(|status| self.failed(&status))?.into_inner().applied)
    }

    /// Requests the deletion of documents: all of them, or none.
    ///
    /// # Errors
    /// One of the documents cannot be deleted, or no manager responds.
    pub async fn delete(&mut self, names: &[DocumentName]) -> Result<Vec<proto::Deleted>, ManagerClientError> {
        let names = names.iter().map(Into::into).collect();
        let deleted = self.documents.delete(proto::DeleteRequest { names }).await;
        Ok(deleted.map_err(|status| self.failed(&status))?.into_inner().deleted)
    }

    /// Returns the current documents, followed by each change.
    ///
    /// # Errors
    /// No manager responds. Later, the stream returns an error when the manager ends.
    pub async fn watch(
        &mut self,
        wanted: &DocumentSelection,
    ) -> Result<impl Stream<Item = Result<proto::WatchEvent, ManagerClientError>> + use<>, ManagerClientError> {
        let stream = self.documents.watch(wanted.request()).await.map_err(|status| self.failed(&status))?;
        let client = self.clone();
        Ok(stream.into_inner().map(move |event| event.map_err(|status| client.failed(&status))))
    }

    fn failed(&self, status: &Status) -> ManagerClientError {
        let words = status.message().to_owned();
        let code = status.code();
        if matches!(code, Code::InvalidArgument | Code::PermissionDenied) {
            return ManagerClientError::Refused(words);
        }
        if code == Code::NotFound {
            return ManagerClientError::NotFound(words);
        }
        if code == Code::Unavailable {
            let why = std::error::Error::source(status).map_or(words, root_cause);
            return ManagerClientError::Unavailable { socket: self.socket.clone(), why };
        }
        ManagerClientError::Failed(words)
    }
}

impl DocumentSelection {
    fn request(&self) -> proto::GetRequest {
        proto::GetRequest { kinds: self.kinds.clone(), names: self.names.iter().map(Into::into).collect() }
    }
}
