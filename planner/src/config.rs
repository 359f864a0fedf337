//! What each machine should hold.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use keelway_api::{
    Documents, Hypervisor,
    component::ComponentSpec,
    fault::Faults,
    hypervisor::Applied,
    machine::{ConfigFormat, DataRemoval, Digest, MachineConfig, MachineState, Pod, config_digest},
    name::{ClusterId, HypervisorName, PodName},
};

use crate::{
    PassObservation, Waiting,
    deletion::{abandoned_removals, data_removals, is_abandoned, keeps_running},
    plan::{Plan, WaitKind},
    pod::{MissingKey, PodInputs},
    replacement_turns::ReplacementTurns,
    tenant::Tenant,
    term::{next_number, term_alone, term_for},
    world::ValidatedDocuments,
};

/// What each machine that could be seen should hold, by documents whose keys are all minted. Each config is made when it is asked
/// for: those of a large fleet together take more memory than all else.
pub struct Configs<'a> {
    documents: &'a Documents,
    world: &'a ValidatedDocuments,
    seen: &'a PassObservation,
    tenants: Vec<Tenant<'a>>,
    /// Clusters that lose what their documents do not tell of.
    looked_after: BTreeSet<&'a ClusterId>,
    turns: ReplacementTurns<'a>,
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
    pub fn of(documents: &'a Documents, world: &'a ValidatedDocuments, seen: &'a PassObservation) -> Self {
        // From stale documents nothing is told to anybody.
        let tenants = if seen.stale() { Vec::new() } else { Tenant::all(documents, world).collect() };
        let mut turns = ReplacementTurns::default();
        for tenant in &tenants {
            let built = |pod: &PodName, spec: &ComponentSpec| wanted(tenant, (documents, world), seen, (pod, spec));
            turns.take(tenant, seen, |pod, spec| built(pod, spec).ok().flatten());
        }
        let looked_after = world.reconciled_clusters().map(|(_, id, _)| id).collect();
        let placed = placed(&tenants);
        Self { documents, world, seen, tenants, looked_after, turns, placed, term: term_alone(documents) }
    }

    /// What one machine should hold.
    ///
    /// Its number is a new one where the content differs from what was written down last, and stays where it does not.
    #[must_use]
    pub fn config(&self, name: &HypervisorName) -> Option<MachineConfig> {
        self.fenced(name).map(|(config, _, _)| config)
    }

    /// The config, its number, and what its machine has no pod of for now.
    fn fenced(&self, name: &HypervisorName) -> Option<(MachineConfig, Applied, Vec<Waiting>)> {
        let document = self.documents.hypervisors.get(name).filter(|_| !self.seen.stale())?;
        let of: (&Hypervisor, _) = (document, self.seen.machine(name)?);
        let MachinePods { pods, unbuildable } = self.pods(name);
        let is_looked_after =
            |id: &ClusterId| self.looked_after.contains(id) && !unbuildable.iter().any(|(tenant, _)| tenant == id);
        let digests = pods.iter().map(|(name, pod)| (name.clone(), pod.content_digest())).collect();
        let is_known = |id: &ClusterId| self.documents.clusters.values().any(|cluster| cluster.id() == Some(id));
        let (config, fence) = composed(of, (is_looked_after, is_known), (&digests, &self.removals(name)), self.term)?;
        let waiting = unbuildable.into_iter().map(|(_, waiting)| waiting).collect();
        Some((MachineConfig { pods, ..config }, fence, waiting))
    }

    fn pods(&self, name: &HypervisorName) -> MachinePods {
        let mut all = MachinePods::default();
        let Some(state) = self.seen.machine(name) else { return all };
        for placed in self.placed.get(name).into_iter().flatten() {
            let (tenant, pod, _) = *placed;
            match self.pod(*placed) {
                Ok(Some(built)) => {
                    all.pods.insert(pod.clone(), built);
                }
                // One that never came to its machine waits for the pass after its keys are minted. A paused cluster loses nothing anyway.
                Err(missing) if state.holds(pod) => {
                    let tenant = self.tenants.get(tenant).filter(|tenant| !tenant.cluster.paused);
                    all.unbuildable
                        .extend(tenant.map(|tenant| (tenant.id.clone(), cannot_build(tenant, pod, &missing))));
                }
                Ok(None) | Err(_) => {}
            }
        }
        all
    }

    /// The etcd members whose data a machine is ordered to remove.
    fn removals(&self, name: &HypervisorName) -> BTreeMap<PodName, DataRemoval> {
        self.tenants.iter().flat_map(|tenant| data_removals(tenant, name)).collect()
    }

    /// What the clusters of the documents want of each machine that was seen and has something of them, or is to have it; and what
    /// cannot be built there.
    #[must_use]
    pub fn desired_pods(&self) -> (BTreeMap<HypervisorName, DesiredPods>, Vec<Waiting>) {
        let (mut wants, mut waiting) = (BTreeMap::new(), Vec::new());
        if self.seen.stale() || self.documents.installation().is_none() {
            return (wants, waiting);
        }
        let seen = self.seen.machines.iter().filter_map(|(name, state)| Some((name, state.known()?)));
        for (name, _) in seen.filter(|(name, state)| self.placed.contains_key(*name) || self.has_something(state)) {
            let MachinePods { pods, unbuildable } = self.pods(name);
            let mut left = self.left();
            left.extend(unbuildable.iter().map(|(id, _)| id.clone()));
            wants.insert(name.clone(), DesiredPods::of(&pods, self.removals(name), left));
            waiting.extend(unbuildable.into_iter().map(|(_, waiting)| waiting));
        }
        (wants, waiting)
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

    fn pod(&self, (tenant, pod, spec): Placed<'_>) -> Result<Option<Pod>, MissingKey> {
        let Some(tenant) = self.tenants.get(tenant) else { return Ok(None) };
        let wanted = wanted(tenant, (self.documents, self.world), self.seen, (pod, spec))?;
        Ok(wanted.map(|wanted| Pod { hold: self.turns.is_held(pod), ..wanted }))
    }
}

/// What one machine should run, and what of it cannot be built: that stays on the machine as it is.
#[derive(Default)]
struct MachinePods {
    pods: BTreeMap<PodName, Pod>,
    unbuildable: Vec<(ClusterId, Waiting)>,
}

fn cannot_build(tenant: &Tenant, pod: &PodName, missing: &MissingKey) -> Waiting {
    Waiting {
        subject: format!("{}/{}", tenant.cluster.reference, pod.component),
        blocker: format!(
            "{missing} in namespace {}: restore it from a backup; until then what runs of it stays as it is",
            tenant.id.namespace()
        ),
        delays: Some((tenant.cluster.reference.clone(), WaitKind::Blocked)),
    }
}

/// What clusters want of one machine, as one plan decided it, without what is in the pods: they are made again where the machine does not
/// have them yet, from the same documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredPods {
    /// By name. Mostly there is one.
    pods: Box<[(PodName, DesiredPod)]>,
    removals: BTreeMap<PodName, DataRemoval>,
    left: BTreeSet<ClusterId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DesiredPod {
    held: bool,
    /// Of all that is in it.
    digest: Digest,
}

impl DesiredPods {
    fn of(pods: &BTreeMap<PodName, Pod>, removals: BTreeMap<PodName, DataRemoval>, left: BTreeSet<ClusterId>) -> Self {
        let wanted = |pod: &Pod| DesiredPod { held: pod.hold, digest: pod.content_digest() };
        Self { pods: pods.iter().map(|(name, pod)| (name.clone(), wanted(pod))).collect(), removals, left }
    }

    /// The etcd members whose data is to be removed.
    #[must_use]
    pub fn removals(&self) -> &BTreeMap<PodName, DataRemoval> {
        &self.removals
    }

    /// Clusters of which what there is beside the pods is left alone: those that were paused when this was decided, and those with a
    /// component there that could not be built.
    #[must_use]
    pub fn left(&self) -> &BTreeSet<ClusterId> {
        &self.left
    }

    /// The same of clusters of which nobody decided yet what goes.
    #[must_use]
    pub fn leaving_clusters(mut self, clusters: &BTreeSet<ClusterId>) -> Self {
        self.left.extend(clusters.iter().cloned());
        self
    }

    /// The pods, with the digests of their content.
    pub fn digests(&self) -> impl Iterator<Item = (&PodName, Digest)> {
        self.pods.iter().map(|(name, pod)| (name, pod.digest))
    }

    fn pod(&self, name: &PodName) -> Option<&DesiredPod> {
        let place = self.pods.binary_search_by(|(known, _)| known.cmp(name)).ok()?;
        Some(&self.pods[place].1)
    }

    /// Those of the pods that are asked for, of the documents and what they mean.
    ///
    /// # Errors
    /// A pod cannot be built from these documents: they are others than those that it was wanted by.
    pub fn pods(
        &self,
        documents: &Documents,
        world: &ValidatedDocuments,
        which: impl Fn(&PodName) -> bool,
    ) -> Result<BTreeMap<PodName, Pod>, MissingKey> {
        let mut pods = BTreeMap::new();
        for tenant in Tenant::all(documents, world) {
            for (pod, component) in &tenant.components {
                let Some(wanted) = self.pod(pod).filter(|_| which(pod)) else { continue };
                let made = PodInputs::of(&tenant, world, pod, &component.spec).map(|site| site.pod()).transpose()?;
                pods.extend(made.map(|made| ((*pod).clone(), Pod { hold: wanted.held, ..made })));
            }
        }
        Ok(pods)
    }
}

/// The config of a machine that was seen, still without its pods, which are all that its clusters want and have these digests.
/// `is_looked_after` is true if what there is of a cluster beside them is to go, `is_known` if there is such a cluster. `term` is the
/// driver's. The second is the number and the digest of the whole config: where they are not written down yet, they have to be saved
/// before the machine takes it.
#[must_use]
pub fn machine_config(
    document: &Hypervisor,
    state: &MachineState,
    (is_looked_after, is_known): (impl Fn(&ClusterId) -> bool, impl Fn(&ClusterId) -> bool),
    wanted: (&BTreeMap<PodName, Digest>, &BTreeMap<PodName, DataRemoval>),
    term: u64,
) -> Option<(MachineConfig, Applied)> {
    composed((document, state), (is_looked_after, is_known), wanted, term)
}

/// Tells what every machine that could be seen should hold, once all keys of a plan are minted: one machine after the
/// other, by name. Their numbers are written down in the plan, which has to be saved before a machine takes a config; so is
/// whose turn it is not.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn configure(
    plan: &mut Plan,
    seen: &PassObservation,
    mut each: impl FnMut(&HypervisorName, MachineConfig),
) -> Result<(), Faults> {
    let world = ValidatedDocuments::of_pass(&plan.documents, seen)?;
    let configs = Configs::of(&plan.documents, &world, seen);
    let (mut issued, mut unbuildable) = (Vec::new(), Vec::new());
    for (name, document) in &plan.documents.hypervisors {
        let Some((config, fence, waiting)) = configs.fenced(name) else { continue };
        unbuildable.extend(waiting);
        if document.status.as_ref().and_then(|status| status.issued.as_ref()) != Some(&fence) {
            issued.push((name.clone(), fence));
        }
        each(name, config);
    }
    let waiting = configs.turns.waiting;
    write_down(&mut plan.documents, issued);
    plan.waiting.extend(waiting);
    plan.waiting.extend(unbuildable);
    Ok(())
}

/// The config of every machine that could be seen, from documents whose keys are all minted.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn machine_configs(
    documents: &Documents,
    seen: &PassObservation,
) -> Result<BTreeMap<HypervisorName, MachineConfig>, Faults> {
    let world = ValidatedDocuments::of_pass(documents, seen)?;
    let configs = Configs::of(documents, &world, seen);
    let names = documents.hypervisors.keys();
    Ok(names.filter_map(|name| Some((name.clone(), configs.config(name)?))).collect())
}

/// The components by machine.
fn placed<'a>(tenants: &[Tenant<'a>]) -> BTreeMap<&'a HypervisorName, Vec<Placed<'a>>> {
    let mut placed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (number, tenant) in tenants.iter().enumerate() {
        for (pod, component) in tenant.components.iter().filter(|(_, component)| !component.is_stopping()) {
            placed.entry(&component.spec.hypervisor).or_default().push((number, *pod, &component.spec));
        }
    }
    placed
}

/// The pod of a component, unless it is to go.
fn wanted(
    tenant: &Tenant,
    (documents, world): (&Documents, &ValidatedDocuments),
    seen: &PassObservation,
    (pod, spec): (&PodName, &ComponentSpec),
) -> Result<Option<Pod>, MissingKey> {
    // Of a deleted cluster that stands still nothing is started again: what is there is left alone.
    let stays = !tenant.is_frozen() && (tenant.cluster.paused || keeps_running((documents, tenant), seen, pod, spec));
    let goes = tenant.document.deleted() && !stays;
    match PodInputs::of(tenant, world, pod, spec).filter(|_| !goes).map(|site| site.pod()).transpose() {
        // A member that would have been stopped last is stopped with the others.
        Err(_) if tenant.document.deleted() && !tenant.cluster.paused => Ok(None),
        built => built,
    }
}

/// The config of a machine without its pods. What there is of clusters that are not looked after, beside these pods, is left alone.
fn composed(
    (document, state): (&Hypervisor, &MachineState),
    (is_looked_after, is_known): (impl Fn(&ClusterId) -> bool, impl Fn(&ClusterId) -> bool),
    (pods, removals): (&BTreeMap<PodName, Digest>, &BTreeMap<PodName, DataRemoval>),
    term: u64,
) -> Option<(MachineConfig, Applied)> {
    let installation = document.status.as_ref()?.installation.clone()?;
    let format = ConfigFormat::understood_by(state.formats)?;
    let is_abandoned = |id: &ClusterId| is_abandoned(document, id) && !is_known(id);
    let is_left = |id: &ClusterId| !is_looked_after(id) && !is_abandoned(id) && has_more(state, id, pods);
    let mut others: BTreeSet<_> = state.clusters().filter(is_left).collect();
    let removals: BTreeMap<_, _> =
        removals.clone().into_iter().chain(abandoned_removals(document, is_abandoned)).collect();
    if format == ConfigFormat::One {
        others.extend(clusters_with_kept_data(state, (pods, &removals)));
    }
    let digest = config_digest(format, &installation, pods, (&others, &removals));
    let fence = fenced(digest, term_for(state, term), document, state)?;
    let (term, generation) = (fence.term, fence.generation);
    let pods = BTreeMap::new();
    Some((MachineConfig { format, installation, term, generation, pods, others, removals }, fence))
}

/// Clusters with marked data of a pod that is not wanted, and whose removal nobody orders. An agent of v0.1.0 knows no orders: it would
/// remove that data.
fn clusters_with_kept_data(
    state: &MachineState,
    (pods, removals): (&BTreeMap<PodName, Digest>, &BTreeMap<PodName, DataRemoval>),
) -> impl Iterator<Item = ClusterId> {
    let marked = state.pods_with_marked_data();
    let kept = marked.filter(|pod| !pods.contains_key(pod) && !removals.contains_key(pod));
    kept.map(|pod| pod.cluster)
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
