//! What people ask of a manager without a management cluster, on a Unix socket of mode 0660.
//!
//! Whoever may connect may read machines, clusters and components, and write machines, clusters and Secrets of users. What holds
//! keys of Keelway's is for root and the manager's own user.

mod convert;
mod peer;
mod service;
mod socket;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::{directory::DirectoryStore, proto::documents_server::DocumentsServer};
use service::DocumentsService;
pub use socket::{ManagerSocketError, ManagerUnixSocket};

/// The most bytes of one message: documents of a large world, as they are moved into a store.
pub const MAX_MESSAGE: usize = 256 << 20;

/// Answers until it is told to stop.
///
/// # Errors
/// The socket broke.
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
