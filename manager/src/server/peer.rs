//! Authorizes the clients of the socket.

use keelway_api::{
    document::{DocumentName, DocumentRef},
    documents::is_ours,
    name::NAMESPACE_PREFIX,
    registry::is_pull_secret,
};
use rustix::process::geteuid;
use tonic::{Request, Status, transport::server::UdsConnectInfo};

/// The client at the other end of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketPeer {
    /// Root or the manager's own user, which can read all files of the store anyway.
    Owner,
    /// A member of the socket's group.
    Member,
}

impl SocketPeer {
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let info = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
        let cred = info.ok_or_else(|| Status::unauthenticated("cannot determine the user of the connection"))?;
        Ok(if cred.uid() == 0 || cred.uid() == geteuid().as_raw() { Self::Owner } else { Self::Member })
    }

    /// Returns whether the client may read a document.
    pub(super) fn sees(self, document: DocumentRef<'_>) -> bool {
        self == Self::Owner || !matches!(document, DocumentRef::Secret(_))
    }

    /// Returns an error if the client may not write or delete this document. `versions` are the existing and the new document.
    pub(super) fn may_write<'a>(
        self,
        name: &DocumentName,
        versions: impl IntoIterator<Item = DocumentRef<'a>>,
    ) -> Result<(), &'static str> {
        if self == Self::Owner {
            return Ok(());
        }
        versions.into_iter().try_for_each(belongs_to_people)?;
        match name.namespace() {
            Some(namespace) if namespace.starts_with(NAMESPACE_PREFIX) => {
                Err("namespaces that begin with keelway- belong to the manager; only root may write to them")
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Returns an error for a document that users may not write.
fn belongs_to_people(document: DocumentRef<'_>) -> Result<(), &'static str> {
    match document {
        DocumentRef::Component(_) => Err("Components belong to the manager; change their Cluster instead"),
        DocumentRef::Secret(secret) if is_ours(secret) && !is_pull_secret(secret) => {
            Err("Secrets of clusters belong to the manager; only root may write them")
        }
        DocumentRef::ClusterClass(_)
        | DocumentRef::Hypervisor(_)
        | DocumentRef::Cluster(_)
        | DocumentRef::Secret(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use keelway_api::{Documents, ReadOptions, documents::SecretName};

    use super::*;

    const ID: &str = "0123456789abcdef";

    fn secret(namespace: &str, labels: &str, kind: &str) -> Documents {
        let text = format!(
            "{{apiVersion: v1, kind: Secret, type: {kind}, metadata: {{name: kubernetes-ca, namespace: {namespace}, \
             labels: {{{labels}}}}}, data: {{active.crt: YQ==}}}}"
        );
        Documents::read_partial(text.as_bytes(), ReadOptions::default()).unwrap()
    }

    fn only(documents: &Documents) -> (DocumentName, DocumentRef<'_>) {
        let name = documents.all_names().next().unwrap();
        let document = documents.get(&name).unwrap();
        (name, document)
    }

    /// Regression: `keelway apply` of a plain Secret in the place of a cluster's authority reported "configured".
    #[test]
    fn the_existing_and_the_new_document_are_both_checked() {
        let own = secret(&format!("keelway-{ID}"), &format!("keelway.dev/cluster-id: {ID}"), "Opaque");
        let users = secret("default", "", "Opaque");
        let (name, own) = only(&own);
        let (users_name, users) = only(&users);
        assert_eq!(SocketPeer::Member.may_write(&users_name, [users, users]), Ok(()));
        assert!(SocketPeer::Member.may_write(&users_name, [own, users]).unwrap_err().contains("only root"));
        assert!(SocketPeer::Member.may_write(&users_name, [users, own]).unwrap_err().contains("only root"));
        assert!(SocketPeer::Member.may_write(&name, [own]).is_err());
        assert_eq!(SocketPeer::Owner.may_write(&name, [own, users]), Ok(()));
    }

    #[test]
    fn only_the_owner_writes_into_keelway_namespaces() {
        let users = secret("default", "", "Opaque");
        let (_, document) = only(&users);
        let refused = |namespace: &str| {
            let name = DocumentName::Secret(SecretName { namespace: namespace.to_owned(), name: "a".to_owned() });
            let result = SocketPeer::Member.may_write(&name, [document]);
            assert_eq!(result, SocketPeer::Member.may_write(&name, []), "{namespace}: a deletion is a write, too");
            assert_eq!(SocketPeer::Owner.may_write(&name, [document]), Ok(()));
            result.is_err()
        };
        for own in ["keelway-0123456789abcdef", "keelway-installation-0123456789abcdef", "keelway-other"] {
            assert!(refused(own), "{own}");
        }
        assert!(!refused("default") && !refused("team-keelway-a"));
    }
}
