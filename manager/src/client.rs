//! Whoever asks a manager on its socket.

use std::{
    io,
    path::{Path, PathBuf},
};

use futures::{Stream, StreamExt, TryStreamExt};
use hyper_util::rt::TokioIo;
use keelway_api::document::DocumentName;
use tokio::net::UnixStream;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    proto::{self, documents_client::DocumentsClient},
    server::MAX_MESSAGE,
};

/// Where a manager listens where nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/keelway-manager/manager.sock";

/// Why a manager did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ManagerClientError {
    /// Nobody listens there, or not for this user.
    #[error("no manager answers on {}: {why}", socket.display())]
    Unavailable {
        /// The socket.
        socket: PathBuf,
        /// Why.
        why: String,
    },
    /// It takes nothing of it. A line for each fault.
    #[error("{0}")]
    Refused(String),
    /// There is no such document.
    #[error("{0}")]
    NotFound(String),
    /// It could not.
    #[error("the manager failed: {0}")]
    Failed(String),
}

/// A manager behind its socket.
#[derive(Debug, Clone)]
pub struct ManagerClient {
    socket: PathBuf,
    documents: DocumentsClient<Channel>,
}

/// Which documents are asked for: all of some kinds, or some by name. Nothing at all is everything.
#[derive(Debug, Clone, Default)]
pub struct DocumentSelection {
    /// Kinds.
    pub kinds: Vec<String>,
    /// Names.
    pub names: Vec<DocumentName>,
}

impl ManagerClient {
    /// The manager on a socket. Nothing is dialled yet.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_: http::Uri| {
            let dialling = UnixStream::connect(path.clone());
            async { Ok::<_, io::Error>(TokioIo::new(dialling.await?)) }
        });
        // The name stands for nothing; gRPC servers want one that is not a path.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        let documents =
            DocumentsClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
        Self { socket: socket.to_owned(), documents }
    }

    /// Documents as they are now, as one text in YAML.
    ///
    /// # Errors
    /// One of the names is of no document, or no manager answers.
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

    /// Hands documents over: all are taken, or none.
    ///
    /// # Errors
    /// They do not fit what is there, or no manager answers.
    pub async fn apply(&mut self, documents: Vec<u8>) -> Result<Vec<proto::Applied>, ManagerClientError> {
        let applied = self.documents.apply(proto::ApplyRequest { documents }).await;
        Ok(applied.map_err(|status| self.failed(&status))?.into_inner().applied)
    }

    /// Asks for the deletion of documents: of all, or of none.
    ///
    /// # Errors
    /// One of them cannot be deleted, or no manager answers.
    pub async fn delete(&mut self, names: &[DocumentName]) -> Result<Vec<proto::Deleted>, ManagerClientError> {
        let names = names.iter().map(Into::into).collect();
        let deleted = self.documents.delete(proto::DeleteRequest { names }).await;
        Ok(deleted.map_err(|status| self.failed(&status))?.into_inner().deleted)
    }

    /// Documents as they are now, then each that changes.
    ///
    /// # Errors
    /// No manager answers; later, it ended.
    pub async fn watch(
        &mut self,
        wanted: &DocumentSelection,
    ) -> Result<impl Stream<Item = Result<proto::WatchEvent, ManagerClientError>> + use<>, ManagerClientError> {
        let told = self.documents.watch(wanted.request()).await.map_err(|status| self.failed(&status))?;
        let client = self.clone();
        Ok(told.into_inner().map(move |event| event.map_err(|status| client.failed(&status))))
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
            let why = std::error::Error::source(status).map_or(words, |cause| root(cause).to_string());
            return ManagerClientError::Unavailable { socket: self.socket.clone(), why };
        }
        ManagerClientError::Failed(words)
    }
}

fn root<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut root = error;
    while let Some(cause) = root.source() {
        root = cause;
    }
    root
}

impl DocumentSelection {
    fn request(&self) -> proto::GetRequest {
        proto::GetRequest { kinds: self.kinds.clone(), names: self.names.iter().map(Into::into).collect() }
    }
}
