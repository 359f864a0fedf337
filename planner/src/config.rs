//! What each machine should hold.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use keelway_api::{
    Documents, Hypervisor,
    component::ComponentSpec,
    fault::Faults,
    hypervisor::Applied,
    machine::{Digest, MachineConfig, MachineState, Pod, config_digest},
    name::{ClusterId, HypervisorName, PodName},
};

use crate::{
    Observation, Waiting,
    deletion::keeps_running,
    plan::Plan,
    pod::Site,
    retirement::ends,
    tenant::Tenant,
    term::{next_number, term_alone, term_for},
    turns::Turns,
    world::World,
};

/// What each machine that could be seen should hold, by documents whose keys are all minted. Each config is made when it is asked
/// for: those of a large fleet together take more memory than all else.
pub struct Configs<'a> {
    documents: &'a Documents,
    world: &'a World,
    seen: &'a Observation,
    tenants: Vec<Tenant<'a>>,
    /// Clusters that lose what their documents do not tell of.
    looked_after: BTreeSet<&'a ClusterId>,
    turns: Turns<'a>,
    placed: BTreeMap<&'a HypervisorName, Vec<Placed<'a>>>,
    /// The driver's.
    term: u64,
}

/// A component with its cluster's place among the tenants.
type Placed<'a> = (usize, &'a PodName, &'a ComponentSpec);

impl<'a> Configs<'a> {
    /// `world` is what the documents mean [for a pass](World::of_pass). They are all that there are, and whoever has them is their only
    /// driver.
    #[must_use]
    pub fn of(documents: &'a Documents, world: &'a World, seen: &'a Observation) -> Self {
        // From stale documents nothing is told to anybody.
        let tenants = if seen.stale() { Vec::new() } else { Tenant::all(documents, world).collect() };
        let mut turns = Turns::default();
        for tenant in &tenants {
            turns.take(tenant, seen, |pod, spec| wanted(tenant, (documents, world), seen, (pod, spec)));
        }
        let looked_after = world.looked_after().map(|(_, id, _)| id).collect();
        let placed = placed(&tenants);
        Self { documents, world, seen, tenants, looked_after, turns, placed, term: term_alone(documents) }
    }

    /// What one machine should hold.
    ///
    /// Its number is a new one where the content differs from what was written down last, and stays where it does not.
    #[must_use]
    pub fn config(&self, name: &HypervisorName) -> Option<MachineConfig> {
        self.fenced(name).map(|(config, _)| config)
    }

    fn fenced(&self, name: &HypervisorName) -> Option<(MachineConfig, Applied)> {
        let document = self.documents.hypervisors.get(name).filter(|_| !self.seen.stale())?;
        let is_looked_after = |id: &ClusterId| self.looked_after.contains(id);
        let pods = self.pods(name);
        let digests = pods.iter().map(|(name, pod)| (name.clone(), pod.content_digest())).collect();
        let of: (&Hypervisor, _) = (document, self.seen.machine(name)?);
        let (config, fence) = composed(of, is_looked_after, &digests, self.term)?;
        Some((MachineConfig { pods, ..config }, fence))
    }

    fn pods(&self, name: &HypervisorName) -> BTreeMap<PodName, Pod> {
        let here = self.placed.get(name).into_iter().flatten();
        here.filter_map(|placed| self.pod(*placed)).collect()
    }

    /// What the clusters of the documents want of each machine that was seen and has something of them, or is to have it.
    #[must_use]
    pub fn wants(&self) -> BTreeMap<HypervisorName, Wants> {
        if self.seen.stale() || self.documents.installation().is_none() {
            return BTreeMap::new();
        }
        let seen = self.seen.machines.iter().filter_map(|(name, state)| Some((name, state.known()?)));
        let names = seen.filter(|(name, state)| self.placed.contains_key(*name) || self.has_something(state));
        names.map(|(name, _)| (name.clone(), Wants::of(&self.pods(name), self.left()))).collect()
    }

    fn has_something(&self, state: &MachineState) -> bool {
        state.clusters().any(|id| self.tenants.iter().any(|tenant| *tenant.id == id))
    }

    /// Clusters of which nothing is taken away, not even what somebody took the Component or a key of away.
    fn left(&self) -> BTreeSet<ClusterId> {
        let ids = self.tenants.iter().map(|tenant| tenant.id);
        ids.filter(|id| !self.looked_after.contains(id)).cloned().collect()
    }

    /// What is waited for until it is its turn.
    #[must_use]
    pub fn waiting(&self) -> &[Waiting] {
        &self.turns.waiting
    }

    fn pod(&self, (tenant, pod, spec): Placed<'_>) -> Option<(PodName, Pod)> {
        let wanted = wanted(self.tenants.get(tenant)?, (self.documents, self.world), self.seen, (pod, spec))?;
        Some((pod.clone(), Pod { hold: self.turns.is_held(pod), ..wanted }))
    }
}

/// What clusters want of one machine, as one plan decided it, without what is in the pods: they are made again where the machine does not
/// have them yet, from the same documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wants {
    /// By name. Mostly there is one.
    pods: Box<[(PodName, WantedPod)]>,
    left: BTreeSet<ClusterId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WantedPod {
    held: bool,
    /// Of all that is in it.
    digest: Digest,
}

impl Wants {
    fn of(pods: &BTreeMap<PodName, Pod>, left: BTreeSet<ClusterId>) -> Self {
        let wanted = |pod: &Pod| WantedPod { held: pod.hold, digest: pod.content_digest() };
        Self { pods: pods.iter().map(|(name, pod)| (name.clone(), wanted(pod))).collect(), left }
    }

    /// Clusters of which what there is beside the pods is left alone: those that were paused when this was decided.
    #[must_use]
    pub fn left(&self) -> &BTreeSet<ClusterId> {
        &self.left
    }

    /// The same of clusters of which nobody decided yet what goes.
    #[must_use]
    pub fn leaving_the_rest(mut self, clusters: &BTreeSet<ClusterId>) -> Self {
        self.left.extend(clusters.iter().cloned());
        self
    }

    /// The pods, with the digests of their content.
    pub fn digests(&self) -> impl Iterator<Item = (&PodName, Digest)> {
        self.pods.iter().map(|(name, pod)| (name, pod.digest))
    }

    fn pod(&self, name: &PodName) -> Option<&WantedPod> {
        let place = self.pods.binary_search_by(|(known, _)| known.cmp(name)).ok()?;
        Some(&self.pods[place].1)
    }

    /// Those of the pods that are asked for, of the documents and what they mean.
    #[must_use]
    pub fn pods(
        &self,
        documents: &Documents,
        world: &World,
        which: impl Fn(&PodName) -> bool,
    ) -> BTreeMap<PodName, Pod> {
        let mut pods = BTreeMap::new();
        for tenant in Tenant::all(documents, world) {
            for (pod, component) in &tenant.components {
                let Some(wanted) = self.pod(pod).filter(|_| which(pod)) else { continue };
                let made = Site::of(&tenant, world, pod, &component.spec).and_then(|site| site.pod().ok());
                pods.extend(made.map(|made| ((*pod).clone(), Pod { hold: wanted.held, ..made })));
            }
        }
        pods
    }
}

/// The config of a machine that was seen, still without its pods, which are all that its clusters want and have these digests.
/// `is_looked_after` tells whether what there is of a cluster beside them is to go, `term` is the driver's. The second is the number and
/// the digest of the whole config: where they are not written down yet, they have to be saved before the machine takes it.
#[must_use]
pub fn machine_config(
    document: &Hypervisor,
    state: &MachineState,
    is_looked_after: impl Fn(&ClusterId) -> bool,
    pods: &BTreeMap<PodName, Digest>,
    term: u64,
) -> Option<(MachineConfig, Applied)> {
    composed((document, state), is_looked_after, pods, term)
}

/// Tells what every machine that could be seen should hold, once all keys of a plan are minted: one machine after the
/// other, by name. Their numbers are written down in the plan, which has to be saved before a machine takes a config; so is
/// whose turn it is not.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn configure(
    plan: &mut Plan,
    seen: &Observation,
    mut each: impl FnMut(&HypervisorName, MachineConfig),
) -> Result<(), Faults> {
    let world = World::of_pass(&plan.documents, seen)?;
    let configs = Configs::of(&plan.documents, &world, seen);
    let mut issued = Vec::new();
    for (name, document) in &plan.documents.hypervisors {
        let Some((config, fence)) = configs.fenced(name) else { continue };
        if document.status.as_ref().and_then(|status| status.issued.as_ref()) != Some(&fence) {
            issued.push((name.clone(), fence));
        }
        each(name, config);
    }
    let waiting = configs.turns.waiting;
    write_down(&mut plan.documents, issued);
    plan.waiting.extend(waiting);
    Ok(())
}

/// The config of every machine that could be seen, from documents whose keys are all minted.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn machine_configs(
    documents: &Documents,
    seen: &Observation,
) -> Result<BTreeMap<HypervisorName, MachineConfig>, Faults> {
    let world = World::of_pass(documents, seen)?;
    let configs = Configs::of(documents, &world, seen);
    let names = documents.hypervisors.keys();
    Ok(names.filter_map(|name| Some((name.clone(), configs.config(name)?))).collect())
}

/// The components by machine.
fn placed<'a>(tenants: &[Tenant<'a>]) -> BTreeMap<&'a HypervisorName, Vec<Placed<'a>>> {
    let mut placed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (number, tenant) in tenants.iter().enumerate() {
        for (pod, component) in tenant.components.iter().filter(|(_, component)| !ends(component)) {
            placed.entry(&component.spec.hypervisor).or_default().push((number, *pod, &component.spec));
        }
    }
    placed
}

/// The pod of a component, unless it is to go. One whose keys are not all there yet waits for the pass after they are.
fn wanted(
    tenant: &Tenant,
    (documents, world): (&Documents, &World),
    seen: &Observation,
    (pod, spec): (&PodName, &ComponentSpec),
) -> Option<Pod> {
    // Of a deleted cluster that stands still nothing is started again: what is there is left alone.
    let stays =
        !tenant.stands_still() && (tenant.cluster.paused || keeps_running((documents, tenant), seen, pod, spec));
    let goes = tenant.document.deleted() && !stays;
    Site::of(tenant, world, pod, spec).filter(|_| !goes)?.pod().ok()
}

/// The config of a machine without its pods. What there is of clusters that are not looked after, beside these pods, is left alone.
fn composed(
    (document, state): (&Hypervisor, &MachineState),
    is_looked_after: impl Fn(&ClusterId) -> bool,
    pods: &BTreeMap<PodName, Digest>,
    term: u64,
) -> Option<(MachineConfig, Applied)> {
    let installation = document.status.as_ref()?.installation.clone()?;
    let others = state.clusters().filter(|id| !is_looked_after(id) && has_more(state, id, pods)).collect();
    let digest = config_digest(&installation, pods, &others);
    let fence = fenced(digest, term_for(state, term), document, state)?;
    let (term, generation) = (fence.term, fence.generation);
    Some((MachineConfig { installation, term, generation, pods: BTreeMap::new(), others }, fence))
}

/// Whether a machine has something of a cluster beside these pods. Where it has not, its config says nothing of the rest: one of a cluster that
/// is left alone stays the same.
fn has_more(state: &MachineState, id: &ClusterId, pods: &BTreeMap<PodName, Digest>) -> bool {
    let wanted: BTreeSet<&str> =
        pods.keys().filter(|pod| pod.cluster == *id).map(|pod| pod.component.as_str()).collect();
    let sandboxes = state.sandboxes.iter().filter(|sandbox| sandbox.pod.cluster == *id);
    let mut running = sandboxes.map(|sandbox| sandbox.pod.component.as_str());
    let files = state.files.keys().filter_map(|path| path.strip_prefix(id.as_str())?.strip_prefix('/'));
    let mut directories = files.filter_map(|path| path.split('/').next());
    let is_other = |component: &str| !wanted.contains(component);
    wanted.is_empty() || running.any(is_other) || directories.any(is_other)
}

/// Orders a config of this digest behind the last one that was written down for the machine, which holds nothing newer. The same content
/// keeps its number, unless that is of a driver before and the machine does not hold it: it would be refused by then. None: documents
/// cannot hold the next number.
fn fenced(digest: String, term: u64, document: &Hypervisor, state: &MachineState) -> Option<Applied> {
    let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
    let Some(issued) = issued else { return Some(Applied { term, generation: 1, digest }) };
    let place = |applied: &Applied| (applied.term, applied.generation);
    let is_held = state.applied.as_ref().map(place) == Some(place(issued));
    if digest == issued.digest && (is_held || issued.term >= term) {
        return Some(issued.clone());
    }
    Some(Applied { term: term.max(issued.term), generation: next_number(issued.generation)?, digest })
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
