//! Checks the credentials for the stores of snapshots.

use super::DocumentFaults;
use crate::{Documents, document::DocumentName, fault::Fault, kind::DocumentKind, origin::OriginIndex};

const FIELD: &str = "spec.etcd.snapshots.sink.s3.credentialsSecret.name";

/// Checks that the Secret with the credentials exists and is complete.
pub(super) fn credentials(documents: &Documents, seen: &OriginIndex<'_>) -> DocumentFaults {
    if seen.broken.contains(&DocumentKind::Secret) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (cluster, document) in documents.clusters.iter().filter(|(_, cluster)| !cluster.deleted()) {
        let Some(name) = document.snapshot_credentials() else { continue };
        let title = format!("Secret {}/{}", name.namespace, name.name);
        let mut add = |problem| {
            let help = "add it to the documents, with the keys accessKeyID and secretAccessKey";
            found.push((DocumentName::Cluster(cluster.clone()), Fault::of(FIELD, problem, help)));
        };
        let Some(secret) = documents.user_secrets.get(&name) else {
            add(format!("{title} does not exist"));
            continue;
        };
        let data = secret.data.as_ref();
        let has = |key: &str| data.is_some_and(|data| data.get(key).is_some_and(|value| !value.0.is_empty()));
        for key in ["accessKeyID", "secretAccessKey"].into_iter().filter(|key| !has(key)) {
            add(format!("{title} has no {key}"));
        }
    }
    found
}
