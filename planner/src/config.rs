//! What each machine should hold.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use keelway_api::{
    Documents, Hypervisor,
    fault::Faults,
    hypervisor::Applied,
    machine::MachineConfig,
    name::{ClusterId, HypervisorName},
};

use crate::{Observation, deletion::keeps_running, pod::Site, turns, world::World};

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
    if seen.stale() {
        return Ok(BTreeMap::new());
    }
    let known: BTreeSet<&ClusterId> = world.clusters.values().map(|(id, _)| id).collect();
    let mut by_machine: BTreeMap<&HypervisorName, Vec<_>> = BTreeMap::new();
    for (pod, component) in &documents.components {
        by_machine.entry(&component.spec.hypervisor).or_default().push((pod, component));
    }
    let mut pods: turns::Pods = BTreeMap::new();
    for name in documents.hypervisors.keys().filter(|name| seen.machine(name).is_some()) {
        let of_machine = by_machine
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
        pods.insert(name, of_machine);
    }
    turns::hold_replicas(documents, &world, seen, &mut pods);
    let mut configs = BTreeMap::new();
    for (name, pods) in pods {
        let Some(document) = documents.hypervisors.get(name) else { continue };
        let installation = document.status.as_ref().and_then(|status| status.installation.clone());
        let (Some(state), Some(installation)) = (seen.machine(name), installation) else { continue };
        let others = state.clusters().filter(|id| !known.contains(id)).collect();
        let config = MachineConfig { installation, term: 1, generation: 1, pods, others };
        configs.insert(name.clone(), fenced(config, document));
    }
    Ok(configs)
}

/// Orders the config behind the last one that was written down for the machine, which holds nothing newer.
fn fenced(config: MachineConfig, document: &Hypervisor) -> MachineConfig {
    let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
    let Some(Applied { term, generation, digest }) = issued else { return config };
    let changed = config.digest() != *digest;
    MachineConfig { term: *term, generation: generation + u64::from(changed), ..config }
}

/// Writes down the configs, which has to be saved before a machine takes one.
pub fn note_issued(documents: &mut Documents, configs: &BTreeMap<HypervisorName, MachineConfig>) {
    for (name, config) in configs {
        let Some(document) = documents.hypervisors.get_mut(name) else { continue };
        let issued = Applied { term: config.term, generation: config.generation, digest: config.digest() };
        document.status.get_or_insert_default().issued = Some(issued);
    }
}
