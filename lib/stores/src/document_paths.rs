//! Maps documents to files, and files to documents.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use keelway_api::{
    document::DocumentName,
    documents::SecretName,
    name::{ClusterRef, LONGEST_NAME, NAMESPACE_PREFIX, PodName, is_label},
};

/// The folders of the store: the plural names of the kinds, as `kubectl` uses them.
pub(crate) const FOLDERS: [&str; 5] = ["clusterclasses", "hypervisors", "clusters", "components", "secrets"];
const SUFFIX: &str = ".yaml";

/// Returns the file of a document, within the store.
pub(crate) fn path_of(name: &DocumentName) -> PathBuf {
    let folder = match name {
        DocumentName::ClusterClass(_) => "clusterclasses",
        DocumentName::Hypervisor(_) => "hypervisors",
        DocumentName::Cluster(_) => "clusters",
        DocumentName::Component(_) => "components",
        DocumentName::Secret(_) => "secrets",
    };
    file(folder, name.namespace().as_deref(), name.name())
}

/// Returns the file that an object of a Kubernetes API would have.
pub(crate) fn path_of_object(kind: &str, namespace: Option<&str>, name: &str) -> Option<PathBuf> {
    let folder = match kind {
        "ClusterClass" => "clusterclasses",
        "Hypervisor" => "hypervisors",
        "Cluster" => "clusters",
        "Component" => "components",
        "Secret" => "secrets",
        _ => return None,
    };
    Some(file(folder, namespace, name))
}

/// Returns a path below the folder, for any strings. The names of valid documents appear in it unchanged.
fn file(folder: &str, namespace: Option<&str>, name: &str) -> PathBuf {
    let mut path = PathBuf::from(folder);
    path.extend(namespace.map(plain));
    path.join(format!("{}{SUFFIX}", plain(name)))
}

/// Returns a string as one component of a path. It is never empty, hidden, or a reference to another directory.
fn plain(text: &str) -> String {
    let is_plain =
        |at: usize, byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || byte == b'.' && at > 0;
    let mut plain = String::with_capacity(text.len());
    for (at, byte) in text.bytes().enumerate() {
        if is_plain(at, byte) {
            plain.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(plain, "%{byte:02X}");
        }
    }
    if plain.is_empty() { "%".to_owned() } else { plain }
}

/// Returns whether a file contains a document. Files with a leading dot belong to editors, or are incomplete.
pub(crate) fn is_document(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let depth = path.components().count();
    let folder = path.iter().next().and_then(|folder| folder.to_str()).unwrap_or_default();
    let expected = if matches!(folder, "clusterclasses" | "hypervisors") { 2 } else { 3 };
    FOLDERS.contains(&folder) && depth == expected && name.ends_with(SUFFIX) && !name.starts_with('.')
}

/// Returns the document that a file is for, if its path is the name of one.
pub(crate) fn name_of(path: &Path) -> Option<DocumentName> {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    Some(match parts[..] {
        ["clusterclasses", file] => {
            let name = file.strip_suffix(SUFFIX).filter(|name| is_label(name, LONGEST_NAME))?;
            DocumentName::ClusterClass(name.to_owned())
        }
        ["hypervisors", file] => DocumentName::Hypervisor(file.strip_suffix(SUFFIX)?.parse().ok()?),
        ["clusters", namespace, file] => {
            DocumentName::Cluster(ClusterRef::parse(namespace, file.strip_suffix(SUFFIX)?).ok()?)
        }
        ["components", namespace, file] => {
            let cluster = namespace.strip_prefix(NAMESPACE_PREFIX)?.parse().ok()?;
            DocumentName::Component(PodName { cluster, component: file.strip_suffix(SUFFIX)?.parse().ok()? })
        }
        ["secrets", namespace, file] => {
            DocumentName::Secret(SecretName::parse(namespace, file.strip_suffix(SUFFIX)?).ok()?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Component};

    use proptest::prelude::*;

    use super::*;

    const KINDS: [&str; 5] = ["ClusterClass", "Hypervisor", "Cluster", "Component", "Secret"];

    proptest! {
        #[test]
        fn no_name_leads_out_of_the_store(
            kind in proptest::sample::select(&KINDS[..]),
            namespace in proptest::option::of("\\PC*|[./a\\\\-]{0,8}"),
            name in "\\PC*|[./a\\\\-]{0,8}",
        ) {
            let path = path_of_object(kind, namespace.as_deref(), &name).unwrap();
            let parts: Vec<Component<'_>> = path.components().collect();
            prop_assert!(parts.iter().all(|part| matches!(part, Component::Normal(_))), "{}", path.display());
            prop_assert_eq!(parts.len(), 2 + usize::from(namespace.is_some()));
            prop_assert!(FOLDERS.iter().any(|folder| path.starts_with(folder)));
            let secret = DocumentName::Secret(SecretName { namespace: namespace.unwrap_or_default(), name });
            prop_assert!(path_of(&secret).components().all(|part| matches!(part, Component::Normal(_))));
        }

        #[test]
        fn different_names_have_different_files(names in proptest::collection::btree_set("[./%aA\\\\]{0,4}", 1..20)) {
            let files: BTreeSet<PathBuf> = names.iter().map(|name| file("secrets", Some("a"), name)).collect();
            prop_assert_eq!(files.len(), names.len());
        }
    }

    #[test]
    fn a_path_and_a_name_convert_to_each_other() {
        let name = DocumentName::Secret(SecretName { namespace: "team-a".to_owned(), name: "a.b-c".to_owned() });
        assert_eq!(path_of(&name), Path::new("secrets/team-a/a.b-c.yaml"));
        assert_eq!(name_of(&path_of(&name)), Some(name));
        for other in ["secrets/../x.yaml", "secrets/A/x.yaml", "clusters/a/X.yaml", "clusterclasses/...yaml"] {
            assert_eq!(name_of(Path::new(other)), None, "{other}");
        }
    }
}
