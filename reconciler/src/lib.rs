//! The pass: load, observe, plan, mint, save, execute. Once, or until the world is settled.

mod adopt;
mod certificates;
mod certify;
mod clocks;
mod components;
mod connected;
mod continuous;
mod dial;
mod enroll;
mod health;
mod managed_cluster;
mod mint;
mod observe;
mod pass;
mod recover;
mod retry_pace;
mod run;
mod secrets;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod workers;

pub use adopt::{AdoptError, adopt};
pub use certify::AgentCertification;
pub use components::DialledComponents;
pub use connected::{AgentRouteError, ConnectedMachines, agent_channel, agent_way, reach_bare};
pub use continuous::{
    ChangingDocuments, Driver, StopReason, Task, Watcher, highest_known_term, reconcile_continuously,
};
pub use enroll::{AgentCredentials, EnrollFault, agent_credentials, enroll, issue_token, revoke_agent};
pub use mint::{MintError, PkiMinter, UserCredentials, issue_client};
pub use pass::{
    PassContext, PassError, PassFailure, PassOutcome, PlanPreview, WallClock, observe_now, pass, preview,
    preview_offline,
};
pub use recover::recover;
pub use run::{RunLimits, RunOutcome, run};
pub use secrets::faults as secret_faults;
pub use workers::{ClusterWorkers, Eviction, JoinInformation, TokenRecord, WorkersError};

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use keelway_api::{
    Documents, Hypervisor,
    jiff::Timestamp,
    machine::{ConfigFormat, MachineConfig, MachineState, ObservedValue},
    name::{ClusterId, HypervisorName, InstallationId},
};
use keelway_hypervisor_agent::{MachineConnection, action::Action, client::ConfigDelivery, machine_io::HttpQuery};
use keelway_planner::{ComponentHealth, MintRequest, Probe};
use tokio_util::sync::CancellationToken;

/// Where documents live: a pipe, a directory, a management cluster.
#[async_trait]
pub trait Store: Send + Sync {
    /// Everything that the pass works on, as it is now.
    async fn load(&self) -> Result<Arc<Documents>, StoreError>;
    /// Keeps the documents, durably, before any effect that relies on them.
    async fn save(&self, documents: &Documents) -> Result<(), StoreError>;
}

/// The store did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("could not {operation} the documents")]
pub struct StoreError {
    /// `load` or `save`.
    pub operation: &'static str,
    /// Why.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// The machines of an installation.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Learns from the documents as whom machines are spoken with that are reached over a network. Comes before anything else is
    /// asked about machines of these documents. Returns machines whose connections were dropped, as they are met anew: those whose way or
    /// credentials changed.
    fn load_credentials(&self, _documents: &Documents) -> BTreeSet<HypervisorName> {
        BTreeSet::new()
    }
    /// What is on a machine now. Bounded in time: a machine that does not answer is unreachable.
    async fn observe(&self, machine: &Hypervisor) -> ObservedValue<MachineState>;
    /// What time it is on a machine by its own clock, from what it told last. Nobody is asked. None: it never told.
    fn clock_of(&self, _machine: &Hypervisor) -> Option<Timestamp> {
        None
    }
    /// The config that a machine holds, keys included; none where it holds none. Only an agent keeps one.
    async fn config(
        &self,
        _machine: &Hypervisor,
        _installation: &InstallationId,
    ) -> Result<Option<MachineConfig>, String> {
        Err("the machine has no agent, and keeps no config".to_owned())
    }
    /// Tells a machine that the leader of this term drives it: what those before ask for is refused from now on. Returns the newest term
    /// that it was told of, which is higher where another one leads by now; 0 where nobody remembers, as of machines without an agent.
    /// Term 0 only asks. Bounded in time.
    async fn fence(&self, _machine: &Hypervisor, _term: u64) -> Result<u64, String> {
        Ok(0)
    }
    /// Brings a machine to its config, which is whole where the machine has no agent. Stops between two effects when told to.
    ///
    /// `actions` is what [`converge`](keelway_hypervisor_agent::converge::converge) makes of the config and a recent look.
    async fn apply(
        &self,
        machine: &Hypervisor,
        config: ConfigDelivery,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome;
    /// Makes a machine obey an installation, whoever it obeyed before. Nothing else of it is touched.
    async fn adopt(&self, machine: &Hypervisor, installation: &InstallationId, run: &RunControl) -> ApplyOutcome {
        let nothing = MachineConfig {
            format: ConfigFormat::NEWEST,
            installation: installation.clone(),
            term: 0,
            generation: 0,
            pods: BTreeMap::new(),
            others: BTreeSet::new(),
            removals: BTreeMap::new(),
        };
        self.apply(machine, nothing.into(), vec![Action::WriteOwner(installation.clone())], run).await
    }
    /// Gives the agent of a machine on a network who it is there. One that does not listen yet is no failure.
    async fn certify(
        &self,
        _machine: &Hypervisor,
        _certifying: &AgentCertification<'_>,
        _run: &RunControl,
    ) -> ApplyOutcome {
        ApplyOutcome::default()
    }
    /// A connection from within the machine's network.
    async fn dial(
        &self,
        machine: &Hypervisor,
        address: SocketAddr,
        patience: Duration,
    ) -> std::io::Result<MachineConnection>;
    /// Asks what listens on a machine's own loopback: the status of the answer, or why there is none. `None` where [`Self::dial`] leads
    /// there.
    async fn get(&self, _machine: &Hypervisor, _question: HttpQuery) -> Option<Result<u16, String>> {
        None
    }
    /// Nothing more is asked for: what was there for questions alone goes.
    async fn release_probes(&self) {}
    /// Returns when something changed on one of these machines. May return early, never late.
    async fn changed(&self, machines: &[&Hypervisor]);
}

/// The components of clusters, and the APIs that they serve.
#[async_trait]
pub trait Components: Send + Sync {
    /// Asks one component how it is. Bounded in time.
    async fn health(&self, documents: &Documents, probe: &Probe) -> ComponentHealth;
    /// Nothing is asked of the components of a cluster for a while: what was there for questions alone goes.
    fn close_idle_connections(&self, _id: &ClusterId) {}
    /// The digest of the bindings that stand in a cluster, asked for as the driver; empty where there are none, and where the
    /// driver has no right to ask, which is so before the first ones.
    async fn bindings(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<String>;
    /// Applies the first bindings of a cluster. What failed is told in words for people with its causes.
    async fn bind(&self, documents: &Documents, id: &ClusterId, now: Timestamp) -> Result<(), String>;
}

/// Mints keys. The only place with randomness.
pub trait Minter: Send {
    /// 16 random hexadecimal digits.
    fn id(&mut self) -> String;
    /// Mints what is asked for, in order, into the Secrets of the documents.
    fn mint(&mut self, documents: &mut Documents, wanted: &[MintRequest], now: Timestamp) -> Result<(), MintError>;
}

/// What came of applying a config to one machine.
#[derive(Debug, Default)]
pub struct ApplyOutcome {
    /// Effects that were done.
    pub effects: usize,
    /// What failed, each in words for people with its causes.
    pub failures: Vec<String>,
}

/// How an execution is watched and ended.
#[derive(Clone)]
pub struct RunControl {
    /// Cancelled when no further effect may begin.
    pub stop: CancellationToken,
    /// Told of each effect as it begins.
    pub progress: Arc<dyn RunProgress>,
}

/// Who watches a run. Every method may be called from many tasks at once.
pub trait RunProgress: Send + Sync {
    /// An effect begins on a machine.
    fn effect(&self, machine: &HypervisorName, action: &str);
    /// A pass ended, and this is waited for.
    fn waiting(&self, waiting: &[keelway_planner::Waiting]);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy)]
pub struct NoProgress;

impl RunProgress for NoProgress {
    fn effect(&self, _machine: &HypervisorName, _action: &str) {}
    fn waiting(&self, _waiting: &[keelway_planner::Waiting]) {}
}
