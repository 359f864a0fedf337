//! A machine with an agent, reached through its socket or on a network. The agent applies its config, and continues without a driver.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, future::ready};
use keelway_agent_api::{
    client::{AgentClientError, ConfigDelivery, DataRestoreOrder, HypervisorAgentClient},
    enrollment::GrantedIdentity,
};
use keelway_api::{
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, UnreachableReason},
    name::{HypervisorName, InstallationId},
};
use keelway_base::error_chain::chain_text;
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::leader::Leader;
use keelway_machine_io::access::MachineAccess;
use keelway_planner::DataRestoration;
use tokio::{sync::Notify, task::JoinHandle};
use tonic::transport::Channel;

use super::{LOOK, UnseenMachine};
use crate::{AgentCertification, ApplyOutcome, RunControl, SnapshotParts};

/// The time limit for opening a watch. An agent responds to it at once.
const WATCH: Duration = Duration::from_secs(5);

/// The time limit for sending and restoring a snapshot. The largest database has 8 GiB.
const RESTORE: Duration = Duration::from_secs(3600);

pub(super) struct ConnectedAgent {
    client: HypervisorAgentClient,
    /// The newest revision that the watch reported since the last observation; 0 if none.
    reported: Arc<AtomicU64>,
    /// The machine's time in its last report, and when that report arrived here.
    clock: Mutex<Option<(Timestamp, Instant)>>,
    /// Access to the machine's root and network, if the agent runs on this host. Otherwise the agent writes and dials on request.
    access: Option<MachineAccess>,
}

impl ConnectedAgent {
    pub(super) async fn on_socket(socket: &Path) -> Result<Self, String> {
        let access = MachineAccess::of_socket(socket).await.map_err(|error| chain_text(&error))?;
        Ok(Self {
            client: HypervisorAgentClient::on_socket(socket),
            reported: Arc::default(),
            clock: Mutex::default(),
            access: Some(access),
        })
    }

    pub(super) fn on_network(channel: Channel) -> Self {
        Self {
            client: HypervisorAgentClient::on_channel(channel),
            reported: Arc::default(),
            clock: Mutex::default(),
            access: None,
        }
    }

    /// Notifies `changed` about each new revision of the machine's state, and once when the agent ends the stream.
    pub(super) async fn listen(&self, changed: Arc<Notify>) -> Result<JoinHandle<()>, String> {
        let mut revisions = self.client.watch(WATCH).await.map_err(|error| chain_text(&error))?;
        // The first revision is the current one.
        revisions.next().await;
        let reported = Arc::clone(&self.reported);
        Ok(tokio::spawn(async move {
            while let Some(revision) = revisions.next().await {
                reported.store(revision, Ordering::Relaxed);
                changed.notify_one();
            }
            changed.notify_one();
        }))
    }

    /// Returns the state of the machine. The agent need not observe again if it already observed the revision that the watch reported.
    pub(super) async fn observe(&self) -> Result<MachineState, UnseenMachine> {
        let revision = self.reported.swap(0, Ordering::Relaxed);
        let (state, time) = self.client.state_with_clock(revision, LOOK).await.map_err(|error| {
            let silent = if let AgentClientError::RuntimeSilent(_) = error {
                UnreachableReason::Runtime
            } else {
                UnreachableReason::Asked
            };
            UnseenMachine { silent, why: chain_text(&error) }
        })?;
        if let Some(time) = time {
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((time, Instant::now()));
        }
        Ok(state)
    }

    /// Returns the current time of the machine's clock, extrapolated from its last report.
    pub(super) fn time(&self) -> Option<Timestamp> {
        let (time, received) = (*self.clock.lock().unwrap_or_else(PoisonError::into_inner))?;
        time.checked_add(received.elapsed()).ok()
    }

    pub(super) async fn config(&self, installation: &InstallationId) -> Result<Option<MachineConfig>, String> {
        self.client.config(installation, LOOK).await.map_err(|error| chain_text(&error))
    }

    pub(super) async fn fence(&self, leader: Leader) -> Result<u64, String> {
        self.client.fence(&leader, LOOK).await.map_err(|error| chain_text(&error))
    }

    pub(super) async fn apply(&self, name: &HypervisorName, config: ConfigDelivery, run: &RunControl) -> ApplyOutcome {
        let tell = |effect: &str| {
            tracing::debug!(machine = %name, effect, "begins");
            run.progress.effect(name, effect);
        };
        let applied = tokio::select! {
            applied = self.client.apply(config, &tell) => applied,
            () = run.stop.cancelled() => return ApplyOutcome::default(),
        };
        match applied {
            Ok(finished) => {
                for held in &finished.postponed {
                    tracing::info!(machine = %name, held, "is postponed");
                }
                let effects = usize::try_from(finished.effects).unwrap_or(usize::MAX);
                ApplyOutcome { effects, failures: finished.failures }
            }
            Err(error) => ApplyOutcome { effects: 0, failures: vec![chain_text(&error)] },
        }
    }

    /// Writes the record of the owner. The agent reads this record with each config that it receives.
    pub(super) async fn adopt(&self, installation: &InstallationId) -> ApplyOutcome {
        let written = match &self.access {
            Some(access) => access.write_owner(installation).await.map_err(|error| chain_text(&error)),
            None => self.client.adopt(installation, LOOK).await.map_err(|error| chain_text(&error)),
        };
        match written {
            Ok(()) => ApplyOutcome { effects: 1, failures: Vec::new() },
            Err(why) => ApplyOutcome { effects: 0, failures: vec![why] },
        }
    }

    /// Issues a new certificate to the agent, for a new key that the agent makes.
    pub(super) async fn renew(&self, certifying: &AgentCertification<'_>) -> Result<(), String> {
        let request = self.client.request_certificate(LOOK).await.map_err(|error| chain_text(&error))?;
        let GrantedIdentity { certificate, trust } = certifying.grant(&request)?;
        self.client.give_identity(Some(certificate), trust, LOOK).await.map_err(|error| chain_text(&error))
    }

    /// Sends the agent the authorities and the revocation list of its driver.
    pub(super) async fn trust(&self, certifying: &AgentCertification<'_>) -> Result<(), String> {
        self.client.give_identity(None, certifying.trust()?, LOOK).await.map_err(|error| chain_text(&error))
    }

    /// Sends a snapshot, from which the agent makes the data of a member. A snapshot that cannot be read to its end is too short for the agent.
    pub(super) async fn restore_data(
        &self,
        leader: Leader,
        restoration: DataRestoration,
        snapshot: SnapshotParts,
    ) -> Result<(), String> {
        let DataRestoration { name, command, .. } = restoration;
        let length = snapshot.length;
        let parts = snapshot
            .into_stream()
            .map(|part| part.inspect_err(|error| tracing::warn!(%error, "cannot read the snapshot to its end")).ok());
        let parts = parts.take_while(|part| ready(part.is_some())).filter_map(ready);
        let order = DataRestoreOrder { leader, pod: name, command, length };
        self.client.restore_data(order, parts, RESTORE).await.map_err(|error| chain_text(&error))
    }

    pub(super) async fn dial(&self, address: SocketAddr, patience: Duration) -> io::Result<MachineConnection> {
        match &self.access {
            Some(access) => access.dial(address, patience).await.map(MachineConnection::from).map_err(io::Error::other),
            None => self.client.dial(address, patience).await.map_err(io::Error::other),
        }
    }
}
