//! One pass, as a list of stages.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::{join_all, join3};
use keelway_api::{
    Documents, Time,
    fault::Faults,
    jiff::Timestamp,
    machine::MachineConfig,
    name::{ClusterId, HypervisorName, NameError},
};
use keelway_hypervisor_agent::{action::Action, converge::converge};
use keelway_planner::{Observation, Plan, Refused, configure, identify, plan, refuse};

use crate::{
    Components, Machines, MintError, Minter, Run, Store, StoreError, certificates, certify::certify, observe::observe,
};

/// Tells the time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What a pass works with.
pub struct Context {
    /// Where documents live.
    pub store: Arc<dyn Store>,
    /// The machines.
    pub machines: Arc<dyn Machines>,
    /// What runs on them.
    pub components: Arc<dyn Components>,
    /// The wall clock.
    pub clock: Clock,
    /// How it is watched and ended.
    pub run: Run,
}

/// A pass that could not be carried out. Nothing was done on any machine.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document does not mean anything.
    #[error("the documents do not mean anything")]
    Faults(#[source] Faults),
    /// An id that was minted is none.
    #[error("could not mint an id")]
    Id(#[source] NameError),
    /// Keys could not be minted.
    #[error("could not mint keys")]
    Mint(#[source] MintError),
}

/// What a pass would do.
#[must_use]
pub struct Preview {
    /// What was decided. Its documents hold all minted keys.
    pub plan: Plan,
    /// What each machine would do; an error where it refuses.
    pub machines: BTreeMap<HypervisorName, Result<Vec<Action>, String>>,
    /// Machines that take nothing from these documents, and why.
    pub refused: BTreeMap<HypervisorName, Refused>,
    /// Of the machines that would do something.
    configs: BTreeMap<HypervisorName, MachineConfig>,
    changed: bool,
}

/// What a pass did.
#[must_use]
pub struct Outcome {
    /// What it had decided.
    pub plan: Plan,
    /// Effects that were done on machines and in clusters.
    pub effects: usize,
    /// What failed.
    pub failures: Vec<Failure>,
    /// Whether a machine takes nothing of it, so that no later pass from these documents does better.
    pub refused: bool,
    /// Whether there was nothing to do and nothing to wait for.
    pub settled: bool,
}

/// Something that failed, with its causes, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The machine or cluster.
    pub at: String,
    /// What failed and why.
    pub why: String,
}

impl Preview {
    /// Whether the pass has nothing to do and nothing to wait for.
    #[must_use]
    pub fn settled(&self) -> bool {
        let idle = self.machines.values().all(|actions| actions.as_ref().is_ok_and(Vec::is_empty));
        idle && self.refused.is_empty()
            && self.plan.mint.is_empty()
            && self.plan.agents.is_empty()
            && self.plan.bindings.is_empty()
            && self.plan.decisions.is_empty()
            && self.plan.waiting.is_empty()
    }
}

/// Observes and decides; keys are minted in memory. Nothing is saved and nothing done.
pub async fn preview(context: &Context, minter: &mut dyn Minter) -> Result<Preview, PassError> {
    let loaded = context.store.load().await?;
    let documents = identified(&loaded, minter)?;
    let seen = observe(&*context.machines, &*context.components, &documents).await.map_err(PassError::Faults)?;
    decide(&loaded, documents, seen, (context.clock)(), minter)
}

/// What a pass over these documents would do that sees what an observation tells, as of then. Nobody is asked.
pub fn preview_offline(
    loaded: &Documents,
    observation: keelway_api::Observation,
    minter: &mut dyn Minter,
) -> Result<Preview, PassError> {
    let documents = identified(loaded, minter)?;
    let now = observation.timestamp.0;
    let seen = Observation::of(observation, certificates::read(&documents));
    decide(loaded, documents, seen, now, minter)
}

/// What is seen now, as a document.
pub async fn look(context: &Context, minter: &mut dyn Minter) -> Result<keelway_api::Observation, PassError> {
    let loaded = context.store.load().await?;
    let documents = identified(&loaded, minter)?;
    let now = (context.clock)();
    let seen = observe(&*context.machines, &*context.components, &documents).await.map_err(PassError::Faults)?;
    Ok(seen.document(Time(now)))
}

fn decide(
    loaded: &Documents,
    documents: Documents,
    mut seen: Observation,
    now: Timestamp,
    minter: &mut dyn Minter,
) -> Result<Preview, PassError> {
    refuse(&documents, &mut seen);
    let mut plan = plan(documents, &seen, now).map_err(PassError::Faults)?;
    minter.mint(&mut plan.documents, &plan.mint, now).map_err(PassError::Mint)?;
    let (mut machines, mut configs) = (BTreeMap::new(), BTreeMap::new());
    let configured = configure(&mut plan, &seen, |name, config| {
        let actions = actions(&config, name, &seen);
        // A machine that is as it should be is told nothing.
        if !actions.as_ref().is_ok_and(Vec::is_empty) {
            configs.insert(name.clone(), config);
        }
        machines.insert(name.clone(), actions);
    });
    configured.map_err(PassError::Faults)?;
    let changed = plan.documents != *loaded;
    Ok(Preview { plan, machines, refused: seen.refused, configs, changed })
}

/// One pass: what [`preview`] decided is saved, then done.
pub async fn pass(context: &Context, minter: &mut dyn Minter) -> Result<Outcome, PassError> {
    let preview = preview(context, minter).await?;
    if preview.changed {
        context.store.save(&preview.plan.documents).await?;
    }
    let settled = preview.settled();
    let refused = !preview.refused.is_empty() || preview.machines.values().any(Result::is_err);
    let (effects, mut failures) = execute(context, &preview).await;
    failures.extend(preview.refused.iter().map(|(at, why)| Failure { at: at.to_string(), why: why.to_string() }));
    Ok(Outcome { plan: preview.plan, effects, failures, refused, settled })
}

pub(crate) fn identified(loaded: &Documents, minter: &mut dyn Minter) -> Result<Documents, PassError> {
    let mut documents = loaded.clone();
    identify(&mut documents, || minter.id()).map_err(PassError::Id)?;
    Ok(documents)
}

fn actions(config: &MachineConfig, name: &HypervisorName, seen: &Observation) -> Result<Vec<Action>, String> {
    let state = seen.machines.get(name).and_then(|state| state.known());
    state.map_or_else(|| Ok(Vec::new()), |state| converge(config, state).map_err(|refusal| refusal.to_string()))
}

/// Every machine and every cluster at once.
async fn execute(context: &Context, preview: &Preview) -> (usize, Vec<Failure>) {
    let machines = join_all(preview.configs.iter().map(|(name, config)| machine(context, preview, name, config)));
    let clusters = join_all(preview.plan.bindings.iter().map(|id| cluster(context, &preview.plan.documents, id)));
    let agents = certify(context, preview);
    let (machines, clusters, agents) = join3(machines, clusters, agents).await;
    let mut effects = 0;
    let mut failures = Vec::new();
    for (done, failed) in machines.into_iter().chain(clusters).chain(agents) {
        effects += done;
        failures.extend(failed);
    }
    (effects, failures)
}

async fn machine(
    context: &Context,
    preview: &Preview,
    name: &HypervisorName,
    config: &MachineConfig,
) -> (usize, Vec<Failure>) {
    let fail = |why: &str| Failure { at: name.to_string(), why: why.to_owned() };
    let Some(document) = preview.plan.documents.hypervisors.get(name) else { return (0, Vec::new()) };
    match preview.machines.get(name) {
        Some(Ok(actions)) if actions.is_empty() => (0, Vec::new()),
        Some(Err(refusal)) => (0, vec![fail(refusal)]),
        None => (0, Vec::new()),
        Some(Ok(actions)) => {
            let applying = context.machines.apply(document, config, actions.clone(), &context.run).await;
            (applying.effects, applying.failures.iter().map(|why| fail(why)).collect())
        }
    }
}

async fn cluster(context: &Context, documents: &Documents, id: &ClusterId) -> (usize, Vec<Failure>) {
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
        Err(why) => (0, vec![Failure { at: id.to_string(), why }]),
    }
}
