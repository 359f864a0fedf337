//! Ids: assigned once, and saved before they are used.

use alloc::string::String;

use keelway_api::{
    Documents, Hypervisor,
    cluster::{FINALIZER, KeelwayStatus},
    hypervisor::AgentStatus,
    name::NameError,
    release::KEELWAY,
};

/// Assigns an id to each Cluster that has none, and one installation to all Hypervisors.
///
/// `random` returns 16 random hexadecimal digits at each call. Returns whether an id was assigned.
///
/// # Errors
/// `random` returned a text that is not an id.
pub fn identify(documents: &mut Documents, mut random: impl FnMut() -> String) -> Result<bool, NameError> {
    let clusters = identify_clusters(documents, &mut random)?;
    Ok(identify_machines(documents, &mut random)? || clusters)
}

/// Assigns an id to each Cluster that has none. Returns whether an id was assigned.
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

/// Returns whether Keelway is to start the machine's agent, and has not begun to.
fn is_to_start_agent(machine: &Hypervisor) -> bool {
    let has_agent = machine.status.as_ref().is_some_and(|status| status.agent.is_some());
    machine.spec.endpoint.cri().is_some() && !machine.deleted() && !has_agent
}

/// Assigns the installation to all Hypervisors without one, and an id to each agent that Keelway starts. Returns whether one was assigned.
///
/// # Errors
/// As [`identify`].
pub fn identify_machines(documents: &mut Documents, mut random: impl FnMut() -> String) -> Result<bool, NameError> {
    let mut changed = false;
    let known = documents.hypervisors.values().find_map(|machine| machine.status.as_ref()?.installation.clone());
    for machine in documents.hypervisors.values_mut().filter(|machine| is_to_start_agent(machine)) {
        // The serial numbers of the agent's certificates are derived from this id.
        machine.status.get_or_insert_default().agent = Some(AgentStatus::new(random()));
        changed = true;
    }
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
