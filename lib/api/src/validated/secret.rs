//! Validates Secrets.

use super::{
    FaultCollector,
    labels::{check_annotations, check_labels},
};
use crate::{
    entries::CompactMap,
    fault::Fault,
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
    name::{ClusterId, InstallationId, LONGEST_NAMESPACE, is_label, is_own_namespace, is_subdomain},
    registry::{self, PullSecret},
    secret::{Metadata, Secret},
    tree::field,
};

const MADE: &str = "Keelway creates the Secrets of clusters: restore the Secret that reconcile wrote";

/// Returns every fault of a Secret of Keelway.
pub(crate) fn secret(document: &Secret) -> Result<(), Vec<Fault>> {
    if registry::is_pull_secret(document) {
        return pull_secret(document);
    }
    let mut faults = FaultCollector::default();
    let metadata = &document.metadata;
    check_labels_of(metadata, &mut faults);
    let owner = faults.take(owner(document));
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if let Some((kind, wanted)) = &owner
        && namespace != wanted
    {
        let problem = format!("{namespace:?} is not the namespace of its {kind}");
        faults.add("metadata.namespace", problem, format!("write {wanted}"));
    }
    let name = metadata.name.as_deref().unwrap_or_default();
    if !is_subdomain(name) {
        let problem = format!("{name:?} is not an RFC 1123 subdomain");
        faults.add("metadata.name", problem, MADE);
    }
    check_data(document, &mut faults);
    faults.or(owner.map(|_| ()))
}

/// Returns every fault of a pull Secret, which a person creates.
fn pull_secret(document: &Secret) -> Result<(), Vec<Fault>> {
    let mut faults = FaultCollector::default();
    check_place(document, &mut faults);
    check_labels_of(&document.metadata, &mut faults);
    if let Err(error) = PullSecret::of(document) {
        faults.add(
            "data",
            error.to_string(),
            "create it again: kubectl create secret docker-registry --dry-run=client -o yaml ..",
        );
    }
    faults.or(Some(()))
}

/// Returns every fault of the metadata of a user's Secret. Keelway does not check its content.
pub(crate) fn check_user_secret(document: &Secret) -> Result<(), Vec<Fault>> {
    let mut faults = FaultCollector::default();
    check_place(document, &mut faults);
    check_labels_of(&document.metadata, &mut faults);
    faults.or(Some(()))
}

fn check_labels_of(metadata: &Metadata, faults: &mut FaultCollector) {
    check_labels(metadata.labels.iter().flatten(), faults);
    let annotations = metadata.rest.as_ref().and_then(|rest| rest.annotations.as_ref());
    check_annotations(annotations, faults);
}

/// Checks the name and the namespace of a Secret that a person creates. Stores use both as its key.
fn check_place(document: &Secret, faults: &mut FaultCollector) {
    let name = document.metadata.name.as_deref().unwrap_or_default();
    if !is_subdomain(name) {
        let help = "it must consist of lowercase letters, digits, - and ., and start and end with a letter or digit";
        faults.add("metadata.name", format!("{name:?} is not an RFC 1123 subdomain"), help);
    }
    let Some(namespace) = document.metadata.namespace.as_deref() else { return };
    if !is_label(namespace, LONGEST_NAMESPACE) {
        let help = "it must consist of lowercase letters, digits and -, and start and end with a letter or digit";
        faults.add("metadata.namespace", format!("{namespace:?} is not an RFC 1123 label"), help);
    } else if is_own_namespace(namespace) {
        let problem = format!("{namespace} is reserved for Keelway, and Keelway did not create this Secret");
        let help = format!(
            "move it to another namespace; if Keelway created it, restore its label {CLUSTER_LABEL} or \
             {INSTALLATION_LABEL}, and its type Opaque"
        );
        faults.add("metadata.namespace", problem, help);
    }
}

/// Returns the owner of a Secret, a cluster or an installation, and the namespace of the owner.
fn owner(document: &Secret) -> Result<(&'static str, String), Fault> {
    let label = |name| document.metadata.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    let read = match (label(CLUSTER_LABEL), label(INSTALLATION_LABEL)) {
        (Some(_), Some(_)) => {
            let problem = "a Secret must not belong to a cluster and to an installation";
            return Err(Fault::of(field("metadata.labels", INSTALLATION_LABEL), problem, MADE));
        }
        (None, Some(id)) => {
            (INSTALLATION_LABEL, id.parse::<InstallationId>().map(|id| ("installation", id.namespace())))
        }
        (id, None) => {
            let id = id.unwrap_or_default().parse::<ClusterId>();
            (CLUSTER_LABEL, id.map(|id| ("cluster", id.namespace())))
        }
    };
    let (label, owner) = read;
    owner.map_err(|error| Fault::of(field("metadata.labels", label), error.to_string(), MADE))
}

fn check_data(document: &Secret, faults: &mut FaultCollector) {
    let data = document.data.as_ref();
    if data.is_none_or(CompactMap::is_empty) {
        faults.add("data", "must not be empty", MADE);
    }
    for (key, value) in data.into_iter().flatten() {
        if value.0.is_empty() {
            faults.add(&field("data", key), "must not be empty", MADE);
        }
    }
}
