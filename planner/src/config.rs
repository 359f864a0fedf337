//! What each machine should hold.

use alloc::{collections::BTreeMap, vec::Vec};

use keelway_api::{
    Documents, Hypervisor,
    fault::Faults,
    hypervisor::Applied,
    machine::{MachineConfig, MachineState},
    name::HypervisorName,
};

use crate::{Observation, deletion::keeps_running, pod::Site, world::World};

/// The config of every machine that could be seen, from documents whose keys are all minted.
///
/// The fence goes up by one where the content differs from what was applied, and stays where it does not.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn machine_configs(
    documents: &Documents,
    seen: &Observation,
) -> Result<BTreeMap<HypervisorName, MachineConfig>, Faults> {
    let world = World::of(documents)?;
    let mut by_machine: BTreeMap<&HypervisorName, Vec<_>> = BTreeMap::new();
    for (pod, component) in &documents.components {
        by_machine.entry(&component.spec.hypervisor).or_default().push((pod, component));
    }
    let mut configs = BTreeMap::new();
    for (name, document) in &documents.hypervisors {
        let installation = document.status.as_ref().and_then(|status| status.installation.clone());
        let (Some(state), Some(installation)) = (seen.machine(name), installation) else { continue };
        let pods = by_machine
            .remove(name)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(pod, component)| {
                let cluster = documents.clusters.get(&component.spec.cluster)?;
                let (id, validated) = world.clusters.get(&component.spec.cluster)?;
                let site = Site::of(documents, &world, (id, validated), pod, &component.spec)?;
                let goes = cluster.deleted() && !keeps_running(documents, seen, pod, &component.spec);
                // A pod whose keys are not all there yet waits for the pass after they are.
                (!goes).then(|| site.pod().ok()).flatten().map(|wanted| (pod.clone(), wanted))
            })
            .collect();
        let config = MachineConfig { installation, term: 1, generation: 1, pods };
        configs.insert(name.clone(), fenced(config, document, state));
    }
    Ok(configs)
}

/// Orders the config behind the newest that documents or machine know.
fn fenced(config: MachineConfig, document: &Hypervisor, state: &MachineState) -> MachineConfig {
    let recorded = document.status.as_ref().and_then(|status| status.applied.as_ref());
    let newest = recorded.into_iter().chain(&state.applied).max_by_key(|applied| (applied.term, applied.generation));
    let Some(Applied { term, generation, digest }) = newest else { return config };
    let changed = config.digest() != *digest;
    MachineConfig { term: *term, generation: generation + u64::from(changed), ..config }
}
