//! Converts names and outcomes to and from messages.

use keelway_api::{
    Documents,
    document::DocumentName,
    documents::SecretName,
    name::{ClusterRef, LONGEST_NAME, NAMESPACE_PREFIX, PodName, is_label},
};

use crate::{directory::EditOutcome, proto};

impl From<&DocumentName> for proto::DocumentName {
    fn from(name: &DocumentName) -> Self {
        Self {
            kind: name.kind().to_owned(),
            namespace: name.namespace().unwrap_or_default(),
            name: name.name().to_owned(),
        }
    }
}

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

impl From<EditOutcome> for proto::Outcome {
    fn from(outcome: EditOutcome) -> Self {
        match outcome {
            EditOutcome::Created => Self::Created,
            EditOutcome::Configured => Self::Configured,
            EditOutcome::Unchanged => Self::Unchanged,
        }
    }
}

/// Returns the current document; `None` if it does not exist.
pub(super) fn document(documents: &Documents, name: &DocumentName) -> Option<proto::Document> {
    Some(proto::Document { name: Some(name.into()), text: documents.text_of(name)? })
}
