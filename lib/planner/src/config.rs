//! What each machine is to run.

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
    machine::{ConfigFormat, DataRemoval, Digest, MachineConfig, MachineState, Pod, config_digest},
    name::{ClusterId, HypervisorName, PodName},
    release::find,
};

use crate::{
    ComponentRef, PassObservation, WaitBlocker, WaitKind, Waiting,
    deletion::{abandoned_removals, data_removals, is_abandoned, keeps_running},
    membership::OutdatedServers,
    plan::Plan,
    pod::{MissingKey, PodInputs},
    replacement_turns::ReplacementTurns,
    tenant::Tenant,
    term::{next_number, term_alone, term_for},
    world::ValidatedDocuments,
};

/// What each observed machine is to run, from documents whose keys are all minted. Each config is built when it is requested: the configs of
/// a large fleet together use more memory than everything else.
pub struct Configs<'a> {
    documents: &'a Documents,
    world: &'a ValidatedDocuments,
    seen: &'a PassObservation,
    tenants: Vec<Tenant<'a>>,
    /// Clusters for which a config removes what the documents do not name.
    looked_after: BTreeSet<&'a ClusterId>,
    turns: ReplacementTurns<'a>,
    placed: BTreeMap<&'a HypervisorName, Vec<Placed<'a>>>,
    /// Of the driver.
    term: u64,
}

/// A component with the index of its cluster in `tenants`.
type Placed<'a> = (usize, &'a PodName, &'a ComponentSpec);

impl<'a> Configs<'a> {
    /// `world` is the documents [validated for a pass](ValidatedDocuments::of_pass). The documents must be complete, and the caller their only
    /// driver.
    #[must_use]
    pub fn of(documents: &'a Documents, world: &'a ValidatedDocuments, seen: &'a PassObservation) -> Self {
        // If the documents are stale, no machine gets a config.
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

    /// Returns the config of one machine. None: the machine was not observed, the documents are stale, or no config is possible.
    ///
    /// The config has a new number if its content differs from the last config that was recorded, and keeps that number otherwise.
    #[must_use]
    pub fn config(&self, name: &HypervisorName) -> Option<MachineConfig> {
        self.fenced(name).map(|(config, _, _)| config)
    }

    /// Returns the config, its fence, and a wait for each pod that the machine holds and that cannot be built.
    fn fenced(&self, name: &HypervisorName) -> Option<(MachineConfig, Applied, Vec<Waiting>)> {
        let document = self.documents.hypervisors.get(name).filter(|_| !self.seen.stale())?;
        let of: (&Hypervisor, _) = (document, self.seen.machine(name)?);
        let MachinePods { pods, unbuildable } = self.pods(name);
        let is_looked_after =
            |id: &ClusterId| self.looked_after.contains(id) && !unbuildable.iter().any(|(tenant, _)| tenant == id);
        let digests = pods.iter().map(|(name, pod)| (name.clone(), pod.content_digest())).collect();
        let is_known = |id: &ClusterId| self.documents.clusters.values().any(|cluster| cluster.id() == Some(id));
        let (config, fence) = composed(of, is_looked_after, is_known, (&digests, &self.removals(name)), self.term)?;
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
                // A pod that the machine does not hold is built in the pass after its keys are minted. A paused cluster loses nothing.
                Err(missing) if state.holds(pod) => {
                    let tenant = self.tenants.get(tenant).filter(|tenant| !tenant.cluster.paused);
                    all.unbuildable
                        .extend(tenant.map(|tenant| (tenant.id.clone(), cannot_build(tenant, pod, missing))));
                }
                Ok(None) | Err(_) => {}
            }
        }
        all
    }

    /// The etcd members whose data the machine is ordered to remove.
    fn removals(&self, name: &HypervisorName) -> BTreeMap<PodName, DataRemoval> {
        self.tenants.iter().flat_map(|tenant| data_removals(tenant, name)).collect()
    }

    /// Returns what the clusters need from each observed machine that holds something of them or is to hold it, and a wait for each pod that
    /// cannot be built.
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

    /// Clusters from which a config removes nothing, even if a Component or a key of theirs is missing in the documents.
    fn left(&self) -> BTreeSet<ClusterId> {
        let ids = self.tenants.iter().map(|tenant| tenant.id);
        ids.filter(|id| !self.looked_after.contains(id)).cloned().collect()
    }

    /// The components that wait for their turn to be replaced.
    #[must_use]
    pub fn waiting(&self) -> &[Waiting] {
        &self.turns.waiting
    }

    /// For each cluster with a member that leaves its store: an API server that is to be replaced first ([`Plan::hold_store_orders`]).
    #[must_use]
    pub fn outdated_servers(&self) -> OutdatedServers {
        self.turns.outdated.clone()
    }

    fn pod(&self, (tenant, pod, spec): Placed<'_>) -> Result<Option<Pod>, MissingKey> {
        let Some(tenant) = self.tenants.get(tenant) else { return Ok(None) };
        let wanted = wanted(tenant, (self.documents, self.world), self.seen, (pod, spec))?;
        let inputs = PodInputs::of(tenant, self.world, pod, spec).filter(|_| self.prefetches(tenant, spec));
        Ok(wanted.map(|wanted| {
            let wanted = Pod { hold: self.turns.is_held(pod), ..wanted };
            match &inputs {
                Some(inputs) => inputs.with_prefetch(wanted),
                None => wanted,
            }
        }))
    }

    /// Whether the machine of a component is to fetch the images of its next release.
    fn prefetches(&self, tenant: &Tenant, spec: &ComponentSpec) -> bool {
        let is_able = || self.seen.machine(&spec.hypervisor).is_some_and(|state| state.prefetches);
        let may_change = || self.documents.faults_of_change(tenant.document).is_empty();
        let is_outdated = find(&spec.version).is_some_and(|runs| runs != tenant.cluster.release);
        is_outdated && !tenant.cluster.paused && !tenant.document.deleted() && is_able() && may_change()
    }
}

/// What one machine is to run, and what cannot be built of it. The latter stays on the machine as it is.
#[derive(Default)]
struct MachinePods {
    pods: BTreeMap<PodName, Pod>,
    unbuildable: Vec<(ClusterId, Waiting)>,
}

fn cannot_build(tenant: &Tenant, pod: &PodName, missing: MissingKey) -> Waiting {
    let component = ComponentRef::of(&tenant.cluster.reference, pod);
    let blocker = WaitBlocker::UnbuildablePod { cluster: tenant.id.clone(), missing };
    Waiting::of_cluster(component, WaitKind::Blocked, blocker)
}

/// What clusters need from one machine, as one plan decided it, without the contents of the pods. If the machine does not hold a pod yet,
/// the pod is built again from the same documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredPods {
    /// Sorted by name. Most machines have one pod.
    pods: Box<[(PodName, DesiredPod)]>,
    removals: BTreeMap<PodName, DataRemoval>,
    left: BTreeSet<ClusterId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DesiredPod {
    held: bool,
    prefetches: bool,
    /// Of the whole pod.
    digest: Digest,
}

impl DesiredPods {
    fn of(pods: &BTreeMap<PodName, Pod>, removals: BTreeMap<PodName, DataRemoval>, left: BTreeSet<ClusterId>) -> Self {
        let wanted = |pod: &Pod| DesiredPod {
            held: pod.hold,
            prefetches: !pod.prefetch.is_empty(),
            digest: pod.content_digest(),
        };
        Self { pods: pods.iter().map(|(name, pod)| (name.clone(), wanted(pod))).collect(), removals, left }
    }

    /// The etcd members whose data the machine is ordered to remove.
    #[must_use]
    pub fn removals(&self) -> &BTreeMap<PodName, DataRemoval> {
        &self.removals
    }

    /// Clusters of which everything on the machine besides the pods is left alone: those that were paused when this was decided, and those with
    /// a component on the machine that could not be built.
    #[must_use]
    pub fn left(&self) -> &BTreeSet<ClusterId> {
        &self.left
    }

    /// Adds clusters for which no plan has decided yet what is removed: they are left alone too.
    #[must_use]
    pub fn leaving_clusters(mut self, clusters: &BTreeSet<ClusterId>) -> Self {
        self.left.extend(clusters.iter().cloned());
        self
    }

    /// The names of the pods with their content digests.
    pub fn digests(&self) -> impl Iterator<Item = (&PodName, Digest)> {
        self.pods.iter().map(|(name, pod)| (name, pod.digest))
    }

    fn pod(&self, name: &PodName) -> Option<&DesiredPod> {
        let place = self.pods.binary_search_by(|(known, _)| known.cmp(name)).ok()?;
        Some(&self.pods[place].1)
    }

    /// Builds those of the pods for which `which` returns true.
    ///
    /// # Errors
    /// A pod cannot be built from these documents, because they are not the documents that the plan used.
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
                let Some(inputs) = PodInputs::of(&tenant, world, pod, &component.spec) else { continue };
                let made = Pod { hold: wanted.held, ..inputs.pod()? };
                let made = if wanted.prefetches { inputs.with_prefetch(made) } else { made };
                pods.insert((*pod).clone(), made);
            }
        }
        Ok(pods)
    }
}

/// Returns the config of an observed machine without its pods, and the fence of the whole config: term, generation and digest. `wanted` is
/// the digests of all pods that the clusters need there, and the removals of data. `is_looked_after` returns whether the machine is to remove
/// everything else of a cluster. `is_known` returns whether the documents have a cluster. `term` is the term of the driver. If the documents
/// do not record the fence yet, the caller saves it before it sends the config.
#[must_use]
pub fn machine_config(
    document: &Hypervisor,
    state: &MachineState,
    is_looked_after: impl Fn(&ClusterId) -> bool,
    is_known: impl Fn(&ClusterId) -> bool,
    wanted: (&BTreeMap<PodName, Digest>, &BTreeMap<PodName, DataRemoval>),
    term: u64,
) -> Option<(MachineConfig, Applied)> {
    composed((document, state), is_looked_after, is_known, wanted, term)
}

/// Passes the config of each observed machine to `each`, ordered by name. All keys of the plan must be minted. Records in the plan the fence
/// of each config, which the caller saves before it sends the config, and the components that wait for their turn to be replaced.
///
/// # Errors
/// A document is invalid. Documents that [`Documents::read`] returned are valid.
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
    let (waiting, outdated) = (configs.turns.waiting, configs.turns.outdated);
    write_down(&mut plan.documents, issued);
    plan.waiting.extend(waiting);
    plan.waiting.extend(unbuildable);
    plan.hold_store_orders(&outdated);
    Ok(())
}

/// Returns the config of every observed machine, from documents whose keys are all minted.
///
/// # Errors
/// A document is invalid. Documents that [`Documents::read`] returned are valid.
pub fn machine_configs(
    documents: &Documents,
    seen: &PassObservation,
) -> Result<BTreeMap<HypervisorName, MachineConfig>, Faults> {
    let world = ValidatedDocuments::of_pass(documents, seen)?;
    let configs = Configs::of(documents, &world, seen);
    let names = documents.hypervisors.keys();
    Ok(names.filter_map(|name| Some((name.clone(), configs.config(name)?))).collect())
}

/// Components that are stopping are left out.
fn placed<'a>(tenants: &[Tenant<'a>]) -> BTreeMap<&'a HypervisorName, Vec<Placed<'a>>> {
    let mut placed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (number, tenant) in tenants.iter().enumerate() {
        for (pod, component) in tenant.components.iter().filter(|(_, component)| !component.is_stopping()) {
            placed.entry(&component.spec.hypervisor).or_default().push((number, *pod, &component.spec));
        }
    }
    placed
}

/// Returns the pod of a component. None: it is to be removed.
fn wanted(
    tenant: &Tenant,
    (documents, world): (&Documents, &ValidatedDocuments),
    seen: &PassObservation,
    (pod, spec): (&PodName, &ComponentSpec),
) -> Result<Option<Pod>, MissingKey> {
    // A deleted cluster that is frozen starts nothing again: what is there is left alone.
    let stays = !tenant.is_frozen() && (tenant.cluster.paused || keeps_running((documents, tenant), seen, pod, spec));
    let goes = tenant.document.deleted() && !stays;
    match PodInputs::of(tenant, world, pod, spec).filter(|_| !goes).map(|site| site.pod()).transpose() {
        // If the pod of a member that would stop last cannot be built, the member stops with the other components.
        Err(_) if tenant.document.deleted() && !tenant.cluster.paused => Ok(None),
        built => built,
    }
}

/// The config of a machine without its pods. Everything else of clusters that are not reconciled is left alone.
fn composed(
    (document, state): (&Hypervisor, &MachineState),
    is_looked_after: impl Fn(&ClusterId) -> bool,
    is_known: impl Fn(&ClusterId) -> bool,
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

/// Clusters with marked data of a pod that is not wanted and whose removal is not ordered. An agent of v0.1.0 does not know such orders: it
/// would remove that data.
fn clusters_with_kept_data(
    state: &MachineState,
    (pods, removals): (&BTreeMap<PodName, Digest>, &BTreeMap<PodName, DataRemoval>),
) -> impl Iterator<Item = ClusterId> {
    let marked = state.pods_with_marked_data();
    let kept = marked.filter(|pod| !pods.contains_key(pod) && !removals.contains_key(pod));
    kept.map(|pod| pod.cluster)
}

/// Whether a machine holds something of a cluster besides these pods. If not, its config does not list the cluster as left alone, so the
/// config of a machine of a paused cluster stays the same.
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

/// The term and generation of a config with this digest: after the last config that was recorded for the machine, which holds no newer one.
/// The same content keeps its number, unless that number is of an earlier driver and the machine does not hold the config: the machine would
/// refuse it by then. None: documents cannot store the next number.
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

/// The fence to record for a config. None: the documents already record this term and generation, which identify the content.
fn to_issue(document: &Hypervisor, config: &MachineConfig) -> Option<Applied> {
    let known = document.status.as_ref().and_then(|status| status.issued.as_ref());
    let is_known = known.is_some_and(|known| (known.term, known.generation) == (config.term, config.generation));
    let issue = || Applied { term: config.term, generation: config.generation, digest: config.digest() };
    (!is_known).then(issue)
}

/// Records the fences of these configs. The caller saves the documents before it sends a config.
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
