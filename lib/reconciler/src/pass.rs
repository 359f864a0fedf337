//! One pass, as a list of stages.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::{self, join_all, join4};
use keelway_api::{
    Documents, Hypervisor, Time,
    fault::Faults,
    jiff::{SignedDuration, Timestamp},
    machine::MachineConfig,
    name::{ClusterId, HypervisorName, NameError},
    role::Role,
};
use keelway_machine::{action::Action, converge::converge};
use keelway_planner::{
    Configs, MachineRefusal, PassObservation, Plan, Probe, StoreOrder, UpgradeOrder, ValidatedDocuments, Waiting,
    check_config, configure, identify, plan, plan_progress, probes, refuse, upgrade_orders, wait_for_clock,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    Components, Machines, MintError, Minter, RunControl, RunProgress, Store, StoreError, certificates,
    certify::certify,
    clocks::clocks_ahead,
    observe::{StoreSelection, member_probes, observe},
};

/// Returns the current time.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What a pass works with.
pub struct PassContext {
    /// The store of the documents.
    pub store: Arc<dyn Store>,
    /// The machines of the documents.
    pub machines: Arc<dyn Machines>,
    /// The components on the machines.
    pub components: Arc<dyn Components>,
    /// The clock that decisions use.
    pub clock: WallClock,
    /// Observes and stops the pass.
    pub run: RunControl,
}

/// A pass that failed. Nothing was done on any machine.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The store did not load or save the documents.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The documents are invalid.
    #[error("the documents are invalid")]
    Faults(#[source] Faults),
    /// An id that was minted is not valid.
    #[error("cannot create an ID")]
    Id(#[source] NameError),
    /// Keys could not be minted.
    #[error("cannot create keys and certificates")]
    Mint(#[source] MintError),
}

/// What a pass would do.
#[must_use]
pub struct PlanPreview {
    /// The plan. Its documents contain all minted keys.
    pub plan: Plan,
    /// The actions on each machine; an error if the machine would refuse the config.
    pub machines: BTreeMap<HypervisorName, Result<Vec<Action>, String>>,
    /// Machines that accept no config from these documents, each with the reason.
    pub refused: BTreeMap<HypervisorName, MachineRefusal>,
    /// What upgrades change from now on, in which order.
    pub upgrades: Vec<UpgradeOrder>,
    settled: bool,
}

/// A decision, with the observation that it is based on. `T` is what the caller keeps of each machine's actions.
pub(crate) struct PassDecision<T> {
    pub(crate) plan: Plan,
    pub(crate) seen: PassObservation,
    machines: BTreeMap<HypervisorName, Result<T, String>>,
    settled: bool,
    changed: bool,
}

/// Whether a machine has work. The actions are decided again when they are executed, because the actions of a large fleet use more memory than
/// everything else.
struct HasWork(bool);

/// What a pass did.
#[must_use]
pub struct PassOutcome {
    /// The plan that was executed.
    pub plan: Plan,
    /// The number of effects that were done on machines and in clusters.
    pub effects: usize,
    /// What failed.
    pub failures: Vec<PassFailure>,
    /// Whether a machine accepts no config from these documents, so that a later pass from the same documents cannot succeed.
    pub refused: bool,
    /// Whether there was nothing to do and nothing to wait for.
    pub settled: bool,
}

/// A failure, as text for users with its causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassFailure {
    /// The machine or cluster.
    pub subject: String,
    /// What failed and why.
    pub reason: String,
}

impl PlanPreview {
    fn of(decided: PassDecision<Vec<Action>>) -> Result<Self, PassError> {
        let PassDecision { plan, seen, machines, settled, changed: _ } = decided;
        let upgrades = upgrade_orders(&plan, &seen).map_err(PassError::Faults)?;
        Ok(Self { plan, machines, refused: seen.refused, upgrades, settled })
    }

    /// Returns whether the pass has nothing to do and nothing to wait for.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.settled
    }
}

/// Observes and decides. Keys are minted in memory. Nothing is saved, and nothing is done.
pub async fn preview(context: &PassContext, minter: &mut dyn Minter) -> Result<PlanPreview, PassError> {
    decided(context, minter, StoreSelection::Needed, |actions| actions).await.and_then(PlanPreview::of)
}

/// Returns what a pass over these documents would do with this observation, at the time of the observation. Sends no request.
pub fn preview_offline(
    loaded: &Documents,
    observation: keelway_api::Observation,
    minter: &mut dyn Minter,
) -> Result<PlanPreview, PassError> {
    let documents = identified(loaded, minter)?;
    let now = observation.timestamp.0;
    let seen = PassObservation::of(observation, certificates::read(&documents));
    decide(loaded, documents, (seen, now), (minter, &|_| Vec::new()), |actions| actions).and_then(PlanPreview::of)
}

/// Returns the current observation as a document.
pub async fn observe_now(
    context: &PassContext,
    minter: &mut dyn Minter,
) -> Result<keelway_api::Observation, PassError> {
    let loaded = context.store.load().await?;
    let documents = identified(&loaded, minter)?;
    let now = (context.clock)();
    let seen = observe(&*context.machines, &*context.components, &documents, StoreSelection::All).await;
    Ok(seen.map_err(PassError::Faults)?.document(Time(now)))
}

pub(crate) async fn decided<T>(
    context: &PassContext,
    minter: &mut dyn Minter,
    selected: StoreSelection,
    keep: impl Fn(Vec<Action>) -> T,
) -> Result<PassDecision<T>, PassError> {
    let loaded = context.store.load().await?;
    let documents = identified(&loaded, minter)?;
    let seen = observe(&*context.machines, &*context.components, &documents, selected).await;
    let (seen, now) = (seen.map_err(PassError::Faults)?, (context.clock)());
    let ahead = |documents: &Documents| clocks_ahead(&*context.machines, documents, now);
    decide(&loaded, documents, (seen, now), (minter, &ahead), keep)
}

/// Returns how far the clocks of machines are ahead.
type ClockSkews<'a> = &'a dyn Fn(&Documents) -> Vec<SignedDuration>;

fn decide<T>(
    loaded: &Documents,
    documents: Documents,
    (mut seen, now): (PassObservation, Timestamp),
    (minter, ahead): (&mut dyn Minter, ClockSkews<'_>),
    keep: impl Fn(Vec<Action>) -> T,
) -> Result<PassDecision<T>, PassError> {
    refuse(&documents, &mut seen);
    let mut plan = plan(documents, &seen, now).map_err(PassError::Faults)?;
    wait_for_clock(&mut plan, ahead);
    minter.mint(&mut plan.documents, &plan.mint, now).map_err(PassError::Mint)?;
    let (mut machines, mut idle) = (BTreeMap::new(), true);
    let configured = configure(&mut plan, &seen, |name, config| {
        let actions = actions(&config, name, &seen);
        idle &= actions.as_ref().is_ok_and(Vec::is_empty);
        machines.insert(name.clone(), actions.map(&keep));
    });
    configured.map_err(PassError::Faults)?;
    plan_progress(&mut plan, &seen, now);
    let settled = idle && seen.refused.is_empty() && is_settled(&plan);
    let changed = plan.documents != *loaded;
    Ok(PassDecision { plan, seen, machines, settled, changed })
}

/// Returns whether there is nothing to do and nothing to wait for, apart from the actions on machines.
pub(crate) fn is_settled(plan: &Plan) -> bool {
    plan.mint.is_empty()
        && plan.agents.is_empty()
        && plan.bindings.is_empty()
        && plan.stores.is_empty()
        && plan.rewrites.is_empty()
        && plan.decisions.is_empty()
        && plan.waiting.is_empty()
}

/// Carries out one pass: saves what was decided, then executes it.
pub async fn pass(context: &PassContext, minter: &mut dyn Minter) -> Result<PassOutcome, PassError> {
    let has_work = |actions: Vec<Action>| HasWork(!actions.is_empty());
    let mut decided = decided(context, minter, StoreSelection::Needed, has_work).await?;
    if decided.changed {
        context.store.save(&decided.plan.documents).await?;
    }
    // The minted values are in the documents now. For a large fleet, the requests use megabytes.
    decided.plan.mint = Vec::new();
    let refused = !decided.seen.refused.is_empty() || decided.machines.values().any(Result::is_err);
    let (effects, mut failures) = execute(context, &decided).await?;
    let PassDecision { plan, seen, settled, .. } = decided;
    failures
        .extend(seen.refused.iter().map(|(at, why)| PassFailure { subject: at.to_string(), reason: why.to_string() }));
    Ok(PassOutcome { plan, effects, failures, refused, settled })
}

pub(crate) fn identified(loaded: &Documents, minter: &mut dyn Minter) -> Result<Documents, PassError> {
    let mut documents = loaded.clone();
    identify(&mut documents, || minter.id()).map_err(PassError::Id)?;
    Ok(documents)
}

fn actions(config: &MachineConfig, name: &HypervisorName, seen: &PassObservation) -> Result<Vec<Action>, String> {
    let state = seen.machines.get(name).and_then(|state| state.known());
    state.map_or_else(|| Ok(Vec::new()), |state| converge(config, state).map_err(|refusal| refusal.to_string()))
}

/// Executes a decision on all machines and clusters concurrently.
async fn execute(
    context: &PassContext,
    decided: &PassDecision<HasWork>,
) -> Result<(usize, Vec<PassFailure>), PassError> {
    let plan = &decided.plan;
    let machines = execute_on_machines(context, decided);
    let clusters = change_clusters(context, plan);
    let stores = order_stores(context, plan);
    let agents = certify(context, plan);
    let (machines, clusters, stores, agents) = join4(machines, clusters, stores, agents).await;
    let mut effects = 0;
    let mut failures = Vec::new();
    for (done, failed) in machines?.into_iter().chain(clusters).chain(stores).chain(agents) {
        effects += done;
        failures.extend(failed);
    }
    Ok((effects, failures))
}

/// The number of configs that were built and whose first effect has not begun. It bounds memory: the configs of a large fleet use more memory
/// than everything else.
const ON_THEIR_WAY: usize = 32;

/// Progress that returns its permit when the first effect begins.
struct PermitProgress {
    progress: Arc<dyn RunProgress>,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl PermitProgress {
    /// Waits for a permit. The returned run releases it when its first effect begins.
    async fn begin(places: &Arc<Semaphore>, run: &RunControl) -> RunControl {
        let place = Mutex::new(Arc::clone(places).acquire_owned().await.ok());
        RunControl { stop: run.stop.clone(), progress: Arc::new(Self { progress: run.progress.clone(), place }) }
    }
}

impl RunProgress for PermitProgress {
    fn effect(&self, machine: &HypervisorName, action: &str) {
        drop(self.place.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.progress.effect(machine, action);
    }

    fn waiting(&self, waiting: &[Waiting]) {
        self.progress.waiting(waiting);
    }
}

/// Applies the configs of machines that have work. Each config is built when it is sent.
async fn execute_on_machines(
    context: &PassContext,
    PassDecision { plan, seen, machines, .. }: &PassDecision<HasWork>,
) -> Result<Vec<(usize, Vec<PassFailure>)>, PassError> {
    let busy = machines.iter().filter(|(_, work)| !matches!(work, Ok(HasWork(false))));
    let busy: Vec<&HypervisorName> = busy.map(|(name, _)| name).collect();
    if busy.is_empty() {
        return Ok(Vec::new());
    }
    let world = ValidatedDocuments::of_pass(&plan.documents, seen).map_err(PassError::Faults)?;
    let configs = Configs::of(&plan.documents, &world, seen);
    let each = busy.into_iter().filter_map(|name| Some((name, plan.documents.hypervisors.get(name)?)));
    let places = Arc::new(Semaphore::new(ON_THEIR_WAY));
    let each = each.map(|(name, document)| async {
        let (configs, handing) = (&configs, PermitProgress::begin(&places, &context.run).await);
        machine(context, (name, document), (&plan.documents, configs), seen, &handing).await
    });
    Ok(join_all(each).await)
}

async fn machine(
    context: &PassContext,
    (name, document): (&HypervisorName, &Hypervisor),
    (documents, configs): (&Documents, &Configs<'_>),
    seen: &PassObservation,
    run: &RunControl,
) -> (usize, Vec<PassFailure>) {
    let Some(config) = configs.config(name) else { return (0, Vec::new()) };
    let fail = |why: String| PassFailure { subject: name.to_string(), reason: why };
    if let Some(violation) = violation(documents, name, &config, seen) {
        return (0, vec![fail(format!("the config is not sent: {violation}"))]);
    }
    match actions(&config, name, seen) {
        Err(refusal) => (0, vec![fail(refusal)]),
        Ok(actions) => {
            let applying = context.machines.apply(document, config.into(), actions, run).await;
            (applying.effects, applying.failures.into_iter().map(fail).collect())
        }
    }
}

/// Returns a rule that the config breaks. This check ensures that a pod is never stopped only because a config lacks it.
fn violation(
    documents: &Documents,
    name: &HypervisorName,
    config: &MachineConfig,
    seen: &PassObservation,
) -> Option<String> {
    let state = seen.machines.get(name)?.known()?;
    let found = check_config(documents, (name, state), config, |pod| config.pods.contains_key(pod));
    found.first().map(ToString::to_string)
}

/// Applies bindings in managed clusters, and writes their Secrets again.
pub(crate) async fn change_clusters(context: &PassContext, plan: &Plan) -> Vec<(usize, Vec<PassFailure>)> {
    let bound = join_all(plan.bindings.iter().map(|id| bind(context, &plan.documents, id)));
    let rewritten = plan.rewrites.iter().map(|(id, key_name)| rewrite(context, &plan.documents, (id, key_name)));
    let (bound, rewritten) = future::join(bound, join_all(rewritten)).await;
    bound.into_iter().chain(rewritten).collect()
}

/// Writes some more Secrets of a cluster again.
async fn rewrite(
    context: &PassContext,
    documents: &Documents,
    (id, key_name): (&ClusterId, &str),
) -> (usize, Vec<PassFailure>) {
    if context.run.stop.is_cancelled() {
        return (0, Vec::new());
    }
    tracing::debug!(cluster = %id, "rewrites");
    match context.components.rewrite(documents, id, key_name, (context.clock)()).await {
        Ok(()) => {
            tracing::debug!(cluster = %id, "rewrote");
            (1, Vec::new())
        }
        Err(reason) => {
            let reason = format!("could not write its Secrets again: {reason}");
            (0, vec![PassFailure { subject: id.to_string(), reason }])
        }
    }
}

/// Applies the first bindings of a cluster.
async fn bind(context: &PassContext, documents: &Documents, id: &ClusterId) -> (usize, Vec<PassFailure>) {
    if context.run.stop.is_cancelled() {
        return (0, Vec::new());
    }
    let now = (context.clock)();
    tracing::debug!(cluster = %id, "binds");
    match context.components.bind(documents, id, now).await {
        Ok(()) => {
            tracing::debug!(cluster = %id, "bound");
            (1, Vec::new())
        }
        Err(reason) => (0, vec![PassFailure { subject: id.to_string(), reason }]),
    }
}

/// Executes the orders to stores. The documents that record them were saved before.
pub(crate) async fn order_stores(context: &PassContext, plan: &Plan) -> Vec<(usize, Vec<PassFailure>)> {
    if plan.stores.is_empty() {
        return Vec::new();
    }
    let probes = match probes(&plan.documents) {
        Ok(probes) => probes,
        Err(faults) => {
            let failure = |id| PassFailure { subject: store_subject(id), reason: faults.to_string() };
            return plan.stores.keys().map(|id| (0, vec![failure(id)])).collect();
        }
    };
    join_all(plan.stores.iter().map(|(id, order)| {
        let members = member_probes(&plan.documents, &probes, id);
        async move { order_store(context, &plan.documents, (id, &members), order).await }
    }))
    .await
}

async fn order_store(
    context: &PassContext,
    documents: &Documents,
    (id, members): (&ClusterId, &[Probe]),
    order: &StoreOrder,
) -> (usize, Vec<PassFailure>) {
    if context.run.stop.is_cancelled() {
        return (0, Vec::new());
    }
    tracing::debug!(cluster = %id, order = %order, "orders");
    match context.components.order(documents, members, order).await {
        Ok(()) => {
            tracing::debug!(cluster = %id, order = %order, "ordered");
            (1, Vec::new())
        }
        Err(reason) => {
            let reason = format!("could not {order}: {reason}");
            (0, vec![PassFailure { subject: store_subject(id), reason }])
        }
    }
}

/// The subject of a failure of a store: `0123456789abcdef/etcd`.
#[must_use]
pub fn store_subject(id: &ClusterId) -> String {
    format!("{id}/{}", Role::Etcd)
}
