//! Converts names and outcomes to and from messages.

use keelway_api::{
    Documents,
    document::DocumentName,
    documents::SecretName,
    name::{ClusterRef, LONGEST_NAME, NAMESPACE_PREFIX, PodName, is_label},
};
use keelway_manager_client::proto;
use keelway_stores::directory::EditOutcome;

/// Returns the name in a request; `None` if no document can have it.
pub(super) fn name_of(name: &proto::DocumentName) -> Option<DocumentName> {
    let namespace = if name.namespace.is_empty() { "default" } else { &name.namespace };
    Some(match name.kind.as_str() {
        "ClusterClass" if is_label(&name.name, LONGEST_NAME) => DocumentName::ClusterClass(name.name.clone()),
        "Hypervisor" => DocumentName::Hypervisor(name.name.parse().ok()?),
        "Cluster" => DocumentName::Cluster(ClusterRef::parse(namespace, &name.name).ok()?),
        "Component" => {
            let cluster = namespace.strip_prefix(NAMESPACE_PREFIX)?.parse().ok()?;
            DocumentName::Component(PodName { cluster, component: name.name.parse().ok()? })
        }
        "Secret" => DocumentName::Secret(SecretName::parse(namespace, &name.name).ok()?),
        _ => return None,
    })
}

/// Returns an outcome as a message.
pub(super) fn wire_outcome(outcome: EditOutcome) -> proto::Outcome {
    match outcome {
        EditOutcome::Created => proto::Outcome::Created,
        EditOutcome::Configured => proto::Outcome::Configured,
        EditOutcome::Unchanged => proto::Outcome::Unchanged,
    }
}

/// Returns the current document; `None` if it does not exist.
pub(super) fn document(documents: &Documents, name: &DocumentName) -> Option<proto::Document> {
    Some(proto::Document { name: Some(name.into()), text: documents.text_of(name)? })
}
