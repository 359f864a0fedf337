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

use crate::{
    Observation,
    deletion::keeps_running,
    plan::{Plan, Waiting},
    pod::Site,
    tenant::Tenant,
    turns,
    world::World,
};

/// What every machine that could be seen should hold, once all keys of a plan are minted. Its numbers are written down in
/// the plan, which has to be saved before a machine takes a config; so is whose turn it is not.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn configure(plan: &mut Plan, seen: &Observation) -> Result<BTreeMap<HypervisorName, MachineConfig>, Faults> {
    let (configs, waiting) = configs_and_turns(&plan.documents, seen)?;
    note_issued(&mut plan.documents, &configs);
    plan.waiting.extend(waiting);
    Ok(configs)
}

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
    configs_and_turns(documents, seen).map(|(configs, _)| configs)
}

type Configs = BTreeMap<HypervisorName, MachineConfig>;

/// The configs, and which pods wait for their turn.
fn configs_and_turns(documents: &Documents, seen: &Observation) -> Result<(Configs, Vec<Waiting>), Faults> {
    let world = World::of(documents)?;
    if seen.stale() {
        return Ok((BTreeMap::new(), Vec::new()));
    }
    let mut waiting = Vec::new();
    let known: BTreeSet<&ClusterId> = world.clusters.values().map(|(id, _)| id).collect();
    let seen_machines = documents.hypervisors.keys().filter(|name| seen.machine(name).is_some());
    let mut pods: turns::Pods = seen_machines.map(|name| (name, BTreeMap::new())).collect();
    for tenant in Tenant::all(documents, &world) {
        add_pods(&mut pods, &tenant, &world, seen);
        waiting.extend(turns::hold_replicas(&tenant, seen, &mut pods));
    }
    let mut configs = BTreeMap::new();
    for (name, pods) in pods {
        let Some(document) = documents.hypervisors.get(name) else { continue };
        let installation = document.status.as_ref().and_then(|status| status.installation.clone());
        let (Some(state), Some(installation)) = (seen.machine(name), installation) else { continue };
        let others = state.clusters().filter(|id| !known.contains(id)).collect();
        let config = MachineConfig { installation, term: 1, generation: 1, pods, others };
        configs.insert(name.clone(), fenced(config, document));
    }
    Ok((configs, waiting))
}

/// The pods of one cluster, each on its machine.
fn add_pods<'a>(pods: &mut turns::Pods<'a>, tenant: &Tenant<'a>, world: &World, seen: &Observation) {
    for (pod, component) in &tenant.components {
        let Some(of_machine) = pods.get_mut(&component.spec.hypervisor) else { continue };
        let goes = tenant.document.deleted() && !keeps_running(tenant, seen, pod, &component.spec);
        let site = Site::of(tenant, world, pod, &component.spec).filter(|_| !goes);
        // A pod whose keys are not all there yet waits for the pass after they are.
        if let Some(wanted) = site.and_then(|site| site.pod().ok()) {
            of_machine.insert((*pod).clone(), wanted);
        }
    }
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
        let known = document.status.as_ref().and_then(|status| status.issued.as_ref());
        // One number is one content: its digest is there already.
        if known.is_some_and(|known| (known.term, known.generation) == (config.term, config.generation)) {
            continue;
        }
        let issued = Applied { term: config.term, generation: config.generation, digest: config.digest() };
        document.status.get_or_insert_default().issued = Some(issued);
    }
}
