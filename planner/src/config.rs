//! What each machine should hold.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use keelway_api::{
    Documents, Hypervisor,
    component::ComponentSpec,
    fault::Faults,
    hypervisor::Applied,
    machine::{MachineConfig, Pod},
    name::{ClusterId, HypervisorName, PodName},
};

use crate::{
    Observation,
    deletion::keeps_running,
    plan::{Plan, Waiting},
    pod::Site,
    tenant::Tenant,
    turns::Turns,
    world::World,
};

/// Tells what every machine that could be seen should hold, once all keys of a plan are minted: one machine after the
/// other, by name, as a large fleet's configs together take more memory than all else. Their numbers are written down in the
/// plan, which has to be saved before a machine takes a config; so is whose turn it is not.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn configure(
    plan: &mut Plan,
    seen: &Observation,
    mut each: impl FnMut(&HypervisorName, MachineConfig),
) -> Result<(), Faults> {
    let mut issued = Vec::new();
    let waiting = each_config(&plan.documents, seen, |name, document, config| {
        issued.extend(to_issue(document, &config).map(|issue| (name.clone(), issue)));
        each(name, config);
    })?;
    write_down(&mut plan.documents, issued);
    plan.waiting.extend(waiting);
    Ok(())
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
    let mut configs = BTreeMap::new();
    each_config(documents, seen, |name, _, config| drop(configs.insert(name.clone(), config)))?;
    Ok(configs)
}

/// Calls with each machine's config. Returns which pods wait for their turn.
fn each_config<'a>(
    documents: &'a Documents,
    seen: &Observation,
    mut each: impl FnMut(&'a HypervisorName, &'a Hypervisor, MachineConfig),
) -> Result<Vec<Waiting>, Faults> {
    let world = World::of(documents)?;
    if seen.stale() {
        return Ok(Vec::new());
    }
    let tenants: Vec<Tenant> = Tenant::all(documents, &world).collect();
    let mut turns = Turns::default();
    for tenant in &tenants {
        turns.take(tenant, seen, |pod, spec| wanted(tenant, &world, seen, (pod, spec)));
    }
    let known: BTreeSet<&ClusterId> = tenants.iter().map(|tenant| tenant.id).collect();
    let mut placed = placed(&tenants);
    for (name, document) in &documents.hypervisors {
        let installation = document.status.as_ref().and_then(|status| status.installation.clone());
        let (Some(state), Some(installation)) = (seen.machine(name), installation) else { continue };
        let here = placed.remove(name).unwrap_or_default().into_iter();
        let pod = |(tenant, pod, spec): (&Tenant, &PodName, _)| {
            let wanted = wanted(tenant, &world, seen, (pod, spec))?;
            Some((pod.clone(), Pod { hold: turns.is_held(pod), ..wanted }))
        };
        let pods = here.filter_map(pod).collect();
        let others = state.clusters().filter(|id| !known.contains(id)).collect();
        let config = MachineConfig { installation, term: 1, generation: 1, pods, others };
        each(name, document, fenced(config, document));
    }
    Ok(turns.waiting)
}

/// A component with its cluster.
type Placed<'t, 'a> = (&'t Tenant<'a>, &'a PodName, &'a ComponentSpec);

/// The components by machine.
fn placed<'t, 'a>(tenants: &'t [Tenant<'a>]) -> BTreeMap<&'a HypervisorName, Vec<Placed<'t, 'a>>> {
    let mut placed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for tenant in tenants {
        for (pod, component) in &tenant.components {
            placed.entry(&component.spec.hypervisor).or_default().push((tenant, *pod, &component.spec));
        }
    }
    placed
}

/// The pod of a component, unless it is to go. One whose keys are not all there yet waits for the pass after they are.
fn wanted(tenant: &Tenant, world: &World, seen: &Observation, (pod, spec): (&PodName, &ComponentSpec)) -> Option<Pod> {
    let goes = tenant.document.deleted() && !keeps_running(tenant, seen, pod, spec);
    Site::of(tenant, world, pod, spec).filter(|_| !goes)?.pod().ok()
}

/// Orders the config behind the last one that was written down for the machine, which holds nothing newer.
fn fenced(config: MachineConfig, document: &Hypervisor) -> MachineConfig {
    let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
    let Some(Applied { term, generation, digest }) = issued else { return config };
    let changed = config.digest() != *digest;
    MachineConfig { term: *term, generation: generation + u64::from(changed), ..config }
}

/// What is to be written down of a config. One number is one content: its digest is there already.
fn to_issue(document: &Hypervisor, config: &MachineConfig) -> Option<Applied> {
    let known = document.status.as_ref().and_then(|status| status.issued.as_ref());
    let is_known = known.is_some_and(|known| (known.term, known.generation) == (config.term, config.generation));
    let issue = || Applied { term: config.term, generation: config.generation, digest: config.digest() };
    (!is_known).then(issue)
}

/// Writes down the configs, which has to be saved before a machine takes one.
pub fn note_issued(documents: &mut Documents, configs: &BTreeMap<HypervisorName, MachineConfig>) {
    let issued = configs.iter().filter_map(|(name, config)| {
        let document = documents.hypervisors.get(name)?;
        Some((name.clone(), to_issue(document, config)?))
    });
    let issued = issued.collect();
    write_down(documents, issued);
}

fn write_down(documents: &mut Documents, issued: Vec<(HypervisorName, Applied)>) {
    for (name, issued) in issued {
        if let Some(document) = documents.hypervisors.get_mut(&name) {
            document.status.get_or_insert_default().issued = Some(issued);
        }
    }
}
