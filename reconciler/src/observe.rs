//! What is there now, asked of everybody at once.

use std::collections::BTreeMap;

use futures::future::{join_all, join3};
use keelway_api::{Documents, fault::Faults};
use keelway_planner::{Observation, probes};

use crate::{Components, Machines, certificates};

/// Looks at every machine, component and cluster of the documents.
pub(crate) async fn observe(
    machines: &dyn Machines,
    components: &dyn Components,
    documents: &Documents,
) -> Result<Observation, Faults> {
    let probes = probes(documents)?;
    let seen = join_all(
        documents
            .hypervisors
            .iter()
            .map(|(name, document)| async move { (name.clone(), machines.observe(document).await) }),
    );
    let health = join_all(
        probes.iter().map(|probe| async { (probe.component.clone(), components.health(documents, probe).await) }),
    );
    let serving = documents.clusters.values().filter(|cluster| !cluster.deleted());
    let bindings = join_all(
        serving
            .filter_map(|cluster| cluster.id())
            .map(|id| async move { (id.clone(), components.bindings(documents, id).await) }),
    );
    let (seen, health, bindings) = join3(seen, health, bindings).await;
    Ok(Observation {
        refused: BTreeMap::new(),
        machines: seen.into_iter().collect(),
        health: health.into_iter().collect(),
        bindings: bindings.into_iter().collect(),
        certificates: certificates::read(documents),
    })
}
