//! The pass: load, observe, plan, mint, save, execute. It runs once, until the documents are settled, or continuously.

mod adopt;
mod certificates;
mod certify;
mod clocks;
mod components;
mod connected;
mod continuous;
mod dial;
mod enroll;
#[cfg(test)]
mod fake_api;
mod health;
mod hosted;
mod listing;
mod managed_cluster;
mod mint;
mod observe;
mod observed_trust;
mod pass;
mod preflight;
pub mod reach;
mod recover;
mod retry_pace;
mod run;
mod secret_rewrite;
mod secrets;
mod snapshots;
mod status;
mod stores;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod workers;

pub use adopt::{AdoptError, adopt};
pub use certify::AgentCertification;
pub use components::DialledComponents;
pub use connected::{AgentRouteError, ConnectedMachines, agent_channel, agent_way};
pub use continuous::{
    ChangingDocuments, Driver, StopReason, Task, Watcher, highest_known_term, reconcile_continuously,
};
pub use enroll::{AgentCredentials, EnrollFault, agent_credentials, enroll, issue_token, revoke_agent};
pub use hosted::{HostedFleetError, mint_hosted_fleet};
pub use mint::{MintError, PkiMinter, UserCredentials, issue_client};
pub use pass::{
    PassContext, PassError, PassFailure, PassOutcome, PlanPreview, WallClock, observe_now, pass, preview,
    preview_offline, store_subject,
};
pub use recover::recover;
pub use run::{RunLimits, RunOutcome, run};
pub use secrets::faults as secret_faults;
pub use snapshots::{SnapshotError, TakenSnapshot, snapshot_key, snapshot_repository, take_due_snapshots};
pub use status::{CurrentStatus, current_status};
pub use workers::{ClusterWorkers, Eviction, JoinInformation, TokenRecord, WorkersError};

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::{Stream, stream};
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Cluster, Documents, Hypervisor,
    jiff::Timestamp,
    machine::{ConfigFormat, MachineConfig, MachineState, ObservedValue},
    name::{ClusterId, HypervisorName, InstallationId},
    snapshots::SnapshotStatus,
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::action::Action;
use keelway_planner::{
    ComponentHealth, DataRestoration, MintRequest, ObservedTrust, Probe, RestorableSnapshot, SecretRewrite,
    StoreObservation, StoreOrder, UpgradePreflight,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Where documents are kept: a pipe, a directory, or a Kubernetes API.
#[async_trait]
pub trait Store: Send + Sync {
    /// Loads all documents that the pass works on.
    async fn load(&self) -> Result<Arc<Documents>, StoreError>;
    /// Saves the documents durably. The caller starts no effect that relies on them before this returns.
    async fn save(&self, documents: &Documents) -> Result<(), StoreError>;
}

/// The store did not load or save the documents.
#[derive(Debug, thiserror::Error)]
#[error("could not {operation} the documents")]
pub struct StoreError {
    /// `load` or `save`.
    pub operation: &'static str,
    /// The cause.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// The machines of an installation.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Loads the client credentials for machines on networks from the documents. Call it before any other method. Returns the machines whose
    /// connections were dropped because their route or credentials changed.
    fn load_credentials(&self, _documents: &Documents) -> BTreeSet<HypervisorName> {
        BTreeSet::new()
    }
    /// Observes a machine. Bounded in time: a machine that does not respond is unreachable.
    async fn observe(&self, machine: &Hypervisor) -> ObservedValue<MachineState>;
    /// Returns the current time of the machine's clock, from its last report. Sends no request. None: the machine never reported its time.
    fn clock_of(&self, _machine: &Hypervisor) -> Option<Timestamp> {
        None
    }
    /// Returns the config that a machine holds, keys included; none if it holds none. Only an agent stores a config.
    async fn config(
        &self,
        _machine: &Hypervisor,
        _installation: &InstallationId,
    ) -> Result<Option<MachineConfig>, String> {
        Err("the machine has no agent and stores no config".to_owned())
    }
    /// Fences a machine with the term of its leader: from then on the machine refuses configs of earlier terms. Returns the newest term that the
    /// machine knows, which is higher if another leader has fenced it since; 0 if it remembers no term, as machines without an agent do. Term 0 only
    /// queries. Bounded in time.
    async fn fence(&self, _machine: &Hypervisor, _term: u64) -> Result<u64, String> {
        Ok(0)
    }
    /// Applies a config to a machine. A machine without an agent needs the whole config. Stops between two effects if `run` is stopped.
    ///
    /// `actions` is the result of [`converge`](keelway_machine::converge::converge) for the config and a recent observation.
    async fn apply(
        &self,
        machine: &Hypervisor,
        config: ConfigDelivery,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome;
    /// Makes a machine obey an installation, whichever it obeyed before. Changes nothing else.
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
    /// Executes an order for the agent of a machine on a network: enrolls it, or renews its certificate or trust. An agent that does not listen yet
    /// is no failure.
    async fn certify(
        &self,
        _machine: &Hypervisor,
        _certifying: &AgentCertification<'_>,
        _run: &RunControl,
    ) -> ApplyOutcome {
        ApplyOutcome::default()
    }
    /// Makes the data of an etcd member from a snapshot, which arrives part by part. The error is text for users, with its causes.
    async fn restore_data(
        &self,
        _machine: &Hypervisor,
        _restoration: DataRestoration,
        _snapshot: SnapshotParts,
    ) -> Result<(), String> {
        Err("the machine cannot restore snapshots".to_owned())
    }
    /// Opens a connection from within the machine's network.
    async fn dial(
        &self,
        machine: &Hypervisor,
        address: SocketAddr,
        patience: Duration,
    ) -> io::Result<MachineConnection>;
    /// Returns when something changed on one of these machines. It may return early, never late.
    async fn changed(&self, machines: &[&Hypervisor]);
}

/// The components of clusters, and the APIs that they serve.
#[async_trait]
pub trait Components: Send + Sync {
    /// Probes one component. Bounded in time.
    async fn health(&self, documents: &Documents, probe: &Probe) -> ComponentHealth;
    /// Closes connections to the components of a cluster, which will not be probed for a while.
    fn close_idle_connections(&self, _id: &ClusterId) {}
    /// Returns the digest of the bindings in a cluster, read with the driver's credentials. It is empty if there are no bindings, or if the driver
    /// has no permission to read them, as before the first ones.
    async fn bindings(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<String>;
    /// Applies the first bindings of a cluster. The error is text for users, with its causes.
    async fn bind(&self, documents: &Documents, id: &ClusterId, now: Timestamp) -> Result<(), String>;
    /// Observes the store of a cluster. `members` are the health checks of its etcd members. Bounded in time.
    async fn store(&self, _documents: &Documents, members: &[Probe]) -> StoreObservation {
        let unknown = || ObservedValue::unreachable("its store cannot be queried");
        let members = members.iter().map(|probe| (probe.component.component.clone(), unknown())).collect();
        StoreObservation { members, ..StoreObservation::default() }
    }
    /// Executes an order to a store, unless the order has already taken effect. `members` are the health checks of its etcd members. Bounded in
    /// time. The error is text for users, with its causes.
    async fn order(&self, _documents: &Documents, _members: &[Probe], _order: &StoreOrder) -> Result<(), String> {
        Err("its store cannot be changed".to_owned())
    }
    /// Returns which Secrets of a cluster were written again with an encryption key, as the cluster records it. Bounded in time.
    async fn rewritten(&self, _documents: &Documents, _id: &ClusterId) -> ObservedValue<SecretRewrite> {
        ObservedValue::unreachable("its Secrets cannot be queried")
    }
    /// Returns what the workers of a cluster, or the agents of a fleet, report about the authorities that they trust. Bounded in time.
    async fn observed_trust(&self, _documents: &Documents, _id: &ClusterId) -> ObservedValue<Vec<ObservedTrust>> {
        ObservedValue::unreachable("its workers cannot be listed")
    }
    /// Returns what the checks before an upgrade of a cluster to another minor version read. Bounded in time.
    async fn upgrade_preflight(&self, _documents: &Documents, _id: &ClusterId) -> UpgradePreflight {
        UpgradePreflight {
            kubelets: ObservedValue::unreachable("its Nodes cannot be listed"),
            deprecated_apis: ObservedValue::unreachable("its metrics cannot be read"),
            silent_webhooks: ObservedValue::unreachable("its webhooks cannot be listed"),
        }
    }
    /// Writes some more Secrets of a cluster again, so that API servers encrypt them with the key of this name, and records that in the cluster. Every
    /// part can be repeated. Bounded in time. The error is text for users, with its causes.
    async fn rewrite(
        &self,
        _documents: &Documents,
        _id: &ClusterId,
        _key_name: &str,
        _now: Timestamp,
    ) -> Result<(), String> {
        Err("its Secrets cannot be written".to_owned())
    }
    /// Opens and verifies the snapshot that a cluster is to be restored from. It can take minutes. The error is text for users, with its causes.
    async fn restorable(&self, _documents: &Documents, _cluster: &Cluster) -> Result<RestorableSnapshot, String> {
        Err("these components read no snapshots".to_owned())
    }
    /// Takes a snapshot of a cluster's store, stores it, and deletes those that its retention does not keep. Bounded in time. The error is text for
    /// users, with its causes.
    async fn take_snapshot(
        &self,
        _documents: &Documents,
        _cluster: &Cluster,
        _now: Timestamp,
    ) -> Result<SnapshotStatus, String> {
        Err("these components send no snapshots".to_owned())
    }
}

/// A snapshot on its way to a machine.
#[derive(Debug)]
pub struct SnapshotParts {
    /// Its length in bytes.
    pub length: u64,
    /// Its parts. If one cannot be read, an error is the last one.
    pub parts: mpsc::Receiver<io::Result<Vec<u8>>>,
}

impl SnapshotParts {
    /// Returns the parts as a stream.
    pub(crate) fn into_stream(self) -> impl Stream<Item = io::Result<Vec<u8>>> + Send {
        stream::unfold(self.parts, |mut parts| async move { parts.recv().await.map(|part| (part, parts)) })
    }
}

/// Mints keys. This is the only place with randomness.
pub trait Minter: Send {
    /// Returns 16 random hexadecimal digits.
    fn id(&mut self) -> String;
    /// Mints what is requested, in order, into the Secrets of the documents.
    fn mint(&mut self, documents: &mut Documents, wanted: &[MintRequest], now: Timestamp) -> Result<(), MintError>;
}

/// The result of applying a config to one machine.
#[derive(Debug, Default)]
pub struct ApplyOutcome {
    /// The number of effects that were done.
    pub effects: usize,
    /// What failed. Each text is for users, with its causes.
    pub failures: Vec<String>,
}

/// Observes and stops a run.
#[derive(Clone)]
pub struct RunControl {
    /// Cancelled when no further effect may begin.
    pub stop: CancellationToken,
    /// Receives each effect as it begins.
    pub progress: Arc<dyn RunProgress>,
}

/// Receives the progress of a run. Every method may be called from several tasks at once.
pub trait RunProgress: Send + Sync {
    /// An effect begins on a machine.
    fn effect(&self, machine: &HypervisorName, action: &str);
    /// A pass ended, and the run waits for this.
    fn waiting(&self, waiting: &[keelway_planner::Waiting]);
}

/// Ignores all progress.
#[derive(Debug, Clone, Copy)]
pub struct NoProgress;

impl RunProgress for NoProgress {
    fn effect(&self, _machine: &HypervisorName, _action: &str) {}
    fn waiting(&self, _waiting: &[keelway_planner::Waiting]) {}
}
