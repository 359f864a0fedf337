//! A machine without an agent, whose runtime is reached through a proxy on a network. This process executes the actions that an agent would,
//! and a helper on the machine reads and writes files.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use keelway_api::{
    Documents, Hypervisor,
    machine::{MachineConfig, MachineState, UnreachableReason},
    name::{HypervisorName, InstallationId},
};
use keelway_base::error_chain::chain_text;
use keelway_cri::{CriRuntime, proxy::connection::MachineConnection};
use keelway_machine::{action::Action, report::Effect};
use keelway_machine_io::{
    helper::{ConfigFence, Helper, HelperError, HelperIdentity},
    local::Machine,
    operation::HttpQuery,
};
use tokio::{
    net::TcpStream,
    sync::Notify,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{AgentRouteError, ApplyOutcome, RunControl, reach::ReachedMachine};

use super::{UnseenMachine, network::bare_runtime};

/// The time limit for a machine that has no helper yet: the machine first fetches the image of the helper.
pub(super) const FIRST: Duration = Duration::from_secs(300);
/// How often the runtime is polled for changes. Its event stream needs a connection on the machine itself.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(super) fn timeout_text() -> String {
    format!("no helper was ready within {} s", FIRST.as_secs())
}

pub(super) struct AgentlessMachine {
    runtime: CriRuntime,
    helper: Helper,
    archives: PathBuf,
    /// Whether the machine held nothing at the last observation.
    empty: AtomicBool,
}

impl AgentlessMachine {
    pub(super) async fn connect(
        runtime: CriRuntime,
        identity: HelperIdentity,
        archives: PathBuf,
    ) -> Result<Self, String> {
        // An unreachable proxy is reported before any other problem.
        runtime.version().await.map_err(|error| chain_text(&error))?;
        let helper = Helper::start(&runtime, &archives, identity).await.map_err(|error| chain_text(&error))?;
        Ok(Self { runtime, helper, archives, empty: AtomicBool::new(false) })
    }

    fn machine(&self, helper: Helper) -> Machine<Helper> {
        Machine::new(helper, self.runtime.clone(), Some(self.archives.clone()))
    }

    /// Notifies `changed` when the runtime's sandboxes or containers change, and once when the runtime stops responding.
    pub(super) fn listen(&self, changed: Arc<Notify>) -> JoinHandle<()> {
        let runtime = self.runtime.clone();
        tokio::spawn(async move {
            let mut ticks = interval(ASK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut known = None;
            loop {
                ticks.tick().await;
                let Ok(now) = states(&runtime).await else { break };
                if known.as_ref().is_some_and(|known| *known != now) {
                    changed.notify_one();
                }
                known = Some(now);
            }
            changed.notify_one();
        })
    }

    pub(super) async fn observe(&self) -> Result<MachineState, UnseenMachine> {
        let state = self.machine(self.helper.clone()).observe().await.map_err(|error| {
            let silent = if error.runtime_is_silent() { UnreachableReason::Runtime } else { UnreachableReason::Asked };
            UnseenMachine { silent, why: chain_text(&error) }
        })?;
        let holds_nothing = state.owner.is_none() && state.files.is_empty() && state.sandboxes.is_empty();
        self.empty.store(holds_nothing, Ordering::Relaxed);
        Ok(state)
    }

    pub(super) async fn execute(
        &self,
        name: &HypervisorName,
        config: &MachineConfig,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome {
        self.empty.store(false, Ordering::Relaxed);
        let fence = ConfigFence { term: config.term, generation: config.generation };
        self.execute_actions(self.helper.with_fence(fence), name, actions, run).await
    }

    async fn execute_actions(
        &self,
        helper: Helper,
        name: &HypervisorName,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome {
        let tell = |effect: Effect<'_>| match effect {
            Effect::Begins(action) => {
                tracing::debug!(machine = %name, %action, "begins");
                run.progress.effect(name, &action.to_string());
            }
            Effect::Done(action) => tracing::info!(machine = %name, %action, "done"),
            Effect::Failed(action, why) => tracing::info!(machine = %name, %action, why, "failed"),
        };
        let takes = actions.iter().any(|action| matches!(action, Action::WriteOwner(_)));
        let report = self.machine(helper).execute(actions, &run.stop, &tell).await;
        let failed = report.failed.iter().map(|failure| format!("{}: {}", failure.action, failure.error));
        let mut failures: Vec<String> = failed.collect();
        // After the owner changed, helpers of other installations are removed.
        if takes && failures.is_empty() {
            failures.extend(self.helper.end_others().await.err().map(|error| chain_text(&error)));
        }
        ApplyOutcome { effects: report.done.len(), failures }
    }

    pub(super) async fn adopt(
        &self,
        name: &HypervisorName,
        installation: &InstallationId,
        run: &RunControl,
    ) -> ApplyOutcome {
        let actions = vec![Action::WriteOwner(installation.clone())];
        self.execute_actions(self.helper.clone(), name, actions, run).await
    }

    pub(super) async fn get(&self, question: HttpQuery) -> Result<u16, String> {
        self.helper.get(question).await
    }

    /// Removes the helper if the machine holds nothing.
    pub(super) async fn remove_idle_helper(&self) {
        if !self.empty.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.helper.end().await {
            tracing::warn!(error = chain_text(&error), "cannot remove the machine's helper");
        }
    }
}

/// Returns the ids and states of all sandboxes and containers.
async fn states(runtime: &CriRuntime) -> Result<BTreeSet<String>, keelway_cri::CriError> {
    let everything = BTreeMap::new();
    let sandboxes = runtime.list_pod_sandboxes(&everything).await?;
    let sandboxes = sandboxes.into_iter().map(|found| format!("{} {:?}", found.id, found.state));
    let containers = runtime.list_containers(&everything).await?;
    Ok(containers.into_iter().map(|found| format!("{} {:?}", found.id, found.state)).chain(sandboxes).collect())
}

/// Connects to a component from this host, which needs a route to the machine's addresses. The helper queries components that listen on the
/// machine's loopback address.
pub(super) async fn dial(address: SocketAddr, patience: Duration) -> io::Result<MachineConnection> {
    let connected = timeout(patience, TcpStream::connect(address)).await;
    let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Why a machine without an agent cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum AgentlessError {
    /// The machine cannot be reached.
    #[error(transparent)]
    Network(#[from] AgentRouteError),
    /// The helper does not start.
    #[error(transparent)]
    Helper(#[from] HelperError),
}

/// Connects to a machine without an agent, so that a user can inspect it.
pub async fn reach_bare(
    documents: &Documents,
    machine: &Hypervisor,
    archives: PathBuf,
) -> Result<ReachedMachine, AgentlessError> {
    let (runtime, identity) = bare_runtime(documents, machine)?;
    let helper = Box::pin(Helper::start(&runtime, &archives, identity)).await?;
    Ok(ReachedMachine::by_helper(runtime, helper))
}
