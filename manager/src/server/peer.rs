//! Who asks, and what they may see and write.

use keelway_api::document::DocumentRef;
use keelway_api::{documents::is_ours, registry::is_pull_secret};
use rustix::process::geteuid;
use tonic::{Request, Status, transport::server::UdsConnectInfo};

/// Who is at the other end of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// Root, or the manager's own user: their files are all that there is.
    Owner,
    /// One of the socket's group.
    Member,
}

impl Peer {
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let info = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
        let cred = info.ok_or_else(|| Status::unauthenticated("nobody knows who asks"))?;
        Ok(if cred.uid() == 0 || cred.uid() == geteuid().as_raw() { Self::Owner } else { Self::Member })
    }

    /// Whether a document is shown to them.
    pub(super) fn sees(self, document: DocumentRef<'_>) -> bool {
        self == Self::Owner || !matches!(document, DocumentRef::Secret(_))
    }

    /// Why they do not write a document of this kind.
    pub(super) fn may_write(self, document: DocumentRef<'_>) -> Result<(), &'static str> {
        match document {
            _ if self == Self::Owner => Ok(()),
            DocumentRef::Component(_) => Err("Components are the manager's own: change their Cluster"),
            DocumentRef::Secret(secret) if is_ours(secret) && !is_pull_secret(secret) => {
                Err("Secrets of clusters are the manager's own: only root writes them")
            }
            DocumentRef::ClusterClass(_)
            | DocumentRef::Hypervisor(_)
            | DocumentRef::Cluster(_)
            | DocumentRef::Secret(_) => Ok(()),
        }
    }
}
