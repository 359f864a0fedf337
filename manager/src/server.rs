//! The API of a manager without a management cluster, on a Unix socket of mode 0660.
//!
//! A user with access to the socket can read machines, clusters and components, and write machines, clusters and users' Secrets. Only root and the
//! manager's own user can access documents that contain Keelway's keys.

mod convert;
mod peer;
mod service;
mod socket;

use std::sync::Arc;

use keelway_manager_client::{MAX_MESSAGE, proto::documents_server::DocumentsServer};
use keelway_stores::directory::DirectoryStore;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use service::DocumentsService;
pub use socket::{ManagerSocketError, ManagerUnixSocket};

/// Serves requests until it is stopped.
///
/// # Errors
/// The socket failed.
pub async fn serve(
    listener: ManagerUnixSocket,
    store: Arc<DirectoryStore>,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service =
        DocumentsServer::new(DocumentsService::new(store, stop.clone())).max_decoding_message_size(MAX_MESSAGE);
    let connections = listener.connections();
    Server::builder().add_service(service).serve_with_incoming_shutdown(connections, stop.cancelled_owned()).await
}
