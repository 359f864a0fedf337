//! The current status of an installation. It is observed and decided as in a pass, and nothing is saved or done.

use std::collections::BTreeMap;

use keelway_api::{Documents, name::ClusterId};
use keelway_planner::StoreObservation;

use crate::{
    Minter, PassContext, PassError,
    observe::StoreSelection,
    pass::{PassDecision, decided},
};

/// The status of an installation.
#[derive(Debug, Clone)]
pub struct CurrentStatus {
    /// The documents, with the conditions that a pass would record now.
    pub documents: Documents,
    /// What the members of each store report; empty if they were not queried.
    pub stores: BTreeMap<ClusterId, StoreObservation>,
}

/// Observes all machines, components and stores. Returns the documents as they were loaded, except for their conditions: what a pass would decide,
/// such as a new component, is not there yet.
pub async fn current_status(context: &PassContext, minter: &mut dyn Minter) -> Result<CurrentStatus, PassError> {
    let loaded = context.store.load().await?;
    let PassDecision { plan, seen, .. } = decided(context, minter, StoreSelection::All, drop).await?;
    let mut documents = Documents::clone(&loaded);
    take_conditions(&mut documents, &plan.documents);
    Ok(CurrentStatus { documents, stores: seen.stores })
}

/// Replaces the conditions of documents by those of the same documents in `decided`.
fn take_conditions(documents: &mut Documents, decided: &Documents) {
    for (name, cluster) in documents.clusters.iter_mut() {
        let Some(found) = decided.clusters.get(name).and_then(|found| found.status.as_ref()) else { continue };
        cluster.status.get_or_insert_default().conditions.clone_from(&found.conditions);
    }
    for (name, component) in documents.components.iter_mut() {
        let Some(found) = decided.components.get(name).and_then(|found| found.status.as_ref()) else { continue };
        component.status.get_or_insert_default().conditions.clone_from(&found.conditions);
    }
    for (name, machine) in documents.hypervisors.iter_mut() {
        let Some(found) = decided.hypervisors.get(name).and_then(|found| found.status.as_ref()) else { continue };
        machine.status.get_or_insert_default().conditions.clone_from(&found.conditions);
    }
}
