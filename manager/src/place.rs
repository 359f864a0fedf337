//! Which file is whose.

use std::path::{Path, PathBuf};

use keelway_api::{
    document::DocumentName,
    documents::SecretName,
    name::{ClusterRef, NAMESPACE_PREFIX, PodName},
};

/// Folders of the store, by kind as `kubectl` names many of them.
pub(crate) const FOLDERS: [&str; 5] = ["clusterclasses", "hypervisors", "clusters", "components", "secrets"];
const SUFFIX: &str = ".yaml";

/// The file of a document, within the store.
pub(crate) fn path_of(name: &DocumentName) -> PathBuf {
    let folder = match name {
        DocumentName::ClusterClass(_) => "clusterclasses",
        DocumentName::Hypervisor(_) => "hypervisors",
        DocumentName::Cluster(_) => "clusters",
        DocumentName::Component(_) => "components",
        DocumentName::Secret(_) => "secrets",
    };
    let mut path = PathBuf::from(folder);
    path.extend(name.namespace());
    path.join(format!("{}{SUFFIX}", name.name()))
}

/// The file of an object of an API.
pub(crate) fn path_of_object(kind: &str, namespace: Option<&str>, name: &str) -> Option<PathBuf> {
    let folder = match kind {
        "ClusterClass" => "clusterclasses",
        "Hypervisor" => "hypervisors",
        "Cluster" => "clusters",
        "Component" => "components",
        "Secret" => "secrets",
        _ => return None,
    };
    let mut path = PathBuf::from(folder);
    path.extend(namespace);
    Some(path.join(format!("{name}{SUFFIX}")))
}

/// Whether a file holds a document: those with a dot in front are of editors, or half written.
pub(crate) fn is_document(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let depth = path.components().count();
    let folder = path.iter().next().and_then(|folder| folder.to_str()).unwrap_or_default();
    let expected = if matches!(folder, "clusterclasses" | "hypervisors") { 2 } else { 3 };
    FOLDERS.contains(&folder) && depth == expected && name.ends_with(SUFFIX) && !name.starts_with('.')
}

/// The document that a file is for, where its name can be one.
pub(crate) fn name_of(path: &Path) -> Option<DocumentName> {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    Some(match parts[..] {
        ["clusterclasses", file] => DocumentName::ClusterClass(file.strip_suffix(SUFFIX)?.to_owned()),
        ["hypervisors", file] => DocumentName::Hypervisor(file.strip_suffix(SUFFIX)?.parse().ok()?),
        ["clusters", namespace, file] => {
            let name = file.strip_suffix(SUFFIX)?.to_owned();
            DocumentName::Cluster(ClusterRef { namespace: namespace.to_owned(), name })
        }
        ["components", namespace, file] => {
            let cluster = namespace.strip_prefix(NAMESPACE_PREFIX)?.parse().ok()?;
            DocumentName::Component(PodName { cluster, component: file.strip_suffix(SUFFIX)?.parse().ok()? })
        }
        ["secrets", namespace, file] => {
            let name = file.strip_suffix(SUFFIX)?.to_owned();
            DocumentName::Secret(SecretName { namespace: namespace.to_owned(), name })
        }
        _ => return None,
    })
}
