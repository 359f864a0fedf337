//! What a Secret of ours means.

use k8s_openapi::api::core::v1::Secret;

use crate::{
    fault::Fault,
    machine::CLUSTER_LABEL,
    name::{ClusterId, is_subdomain},
    tree::field,
};

use super::Faults;

const MADE: &str = "Secrets of clusters are made by Keelway: take it from what reconcile wrote";

/// The cluster that a Secret of ours belongs to.
pub(crate) fn secret(document: &Secret) -> Result<ClusterId, Vec<Fault>> {
    let mut faults = Faults::default();
    let metadata = &document.metadata;
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER_LABEL)).map_or("", String::as_str);
    let id = label
        .parse::<ClusterId>()
        .map_err(|error| Fault::of(field("metadata.labels", CLUSTER_LABEL), error.to_string(), MADE));
    let id = faults.take(id);
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if let Some(id) = &id
        && namespace != id.namespace()
    {
        let problem = format!("{namespace:?} is not the namespace of its cluster");
        faults.add("metadata.namespace", problem, format!("write {}", id.namespace()));
    }
    let name = metadata.name.as_deref().unwrap_or_default();
    if !is_subdomain(name) {
        let problem = format!("{name:?} is no RFC 1123 subdomain");
        faults.add("metadata.name", problem, MADE);
    }
    check_data(document, &mut faults);
    faults.or(id)
}

fn check_data(document: &Secret, faults: &mut Faults) {
    let data = document.data.as_ref();
    if data.is_none_or(std::collections::BTreeMap::is_empty) {
        faults.add("data", "the Secret holds nothing", MADE);
    }
    for (key, value) in data.into_iter().flatten() {
        if value.0.is_empty() {
            faults.add(&field("data", key), "the value is empty", MADE);
        }
    }
}
