//! Ids: minted once, saved before the first effect.

use alloc::string::String;

use keelway_api::{
    Documents,
    cluster::{FINALIZER, KeelwayStatus},
    name::NameError,
    release::KEELWAY,
};

/// Gives an id to each Cluster that has none, and one installation to all Hypervisors.
///
/// `random` returns 16 random hexadecimal digits at each call. Returns whether anything was given.
///
/// # Errors
/// What `random` returned is no id.
pub fn identify(documents: &mut Documents, mut random: impl FnMut() -> String) -> Result<bool, NameError> {
    let clusters = identify_clusters(documents, &mut random)?;
    Ok(identify_machines(documents, random)? || clusters)
}

/// Gives an id to each Cluster that has none.
///
/// # Errors
/// As [`identify`].
pub fn identify_clusters(documents: &mut Documents, mut random: impl FnMut() -> String) -> Result<bool, NameError> {
    let mut changed = false;
    for cluster in documents.clusters.values_mut().filter(|cluster| cluster.id().is_none()) {
        let status = cluster.status.get_or_insert_default();
        status.id = Some(random().parse()?);
        status.keelway = Some(KeelwayStatus { version: KEELWAY.into(), previous_version: None });
        let finalizers = cluster.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            finalizers.push(FINALIZER.into());
        }
        changed = true;
    }
    Ok(changed)
}

/// Gives one installation to all Hypervisors.
///
/// # Errors
/// As [`identify`].
pub fn identify_machines(documents: &mut Documents, mut random: impl FnMut() -> String) -> Result<bool, NameError> {
    let mut changed = false;
    let known = documents.hypervisors.values().find_map(|machine| machine.status.as_ref()?.installation.clone());
    let installation = match known {
        Some(installation) => installation,
        None if documents.hypervisors.is_empty() => return Ok(changed),
        None => random().parse()?,
    };
    for machine in documents.hypervisors.values_mut() {
        if machine.status.as_ref().is_none_or(|status| status.installation.is_none()) {
            machine.status.get_or_insert_default().installation = Some(installation.clone());
            changed = true;
        }
    }
    Ok(changed)
}
