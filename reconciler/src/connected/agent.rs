//! A machine that has an agent, behind its socket or on a network: the agent does what there is to do, and goes on when nobody listens.

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

use futures::StreamExt;
use keelway_api::{
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, UnreachableReason},
    name::{HypervisorName, InstallationId},
};
use keelway_hypervisor_agent::{
    MachineConnection,
    access::MachineAccess,
    client::{AgentClientError, ConfigDelivery, HypervisorAgentClient},
    enrollment::GrantedIdentity,
    leader::Leader,
    report::chain_text,
};
use tokio::{sync::Notify, task::JoinHandle};
use tonic::transport::Channel;

use super::{LOOK, UnseenMachine};
use crate::{AgentCertification, ApplyOutcome, RunControl};

/// An agent's watch answers at once.
const WATCH: Duration = Duration::from_secs(5);

pub(super) struct ConnectedAgent {
    client: HypervisorAgentClient,
    /// The newest revision that was told since the last look; 0 for none.
    told: Arc<AtomicU64>,
    /// What time it was on the machine when it told that last, and when that was.
    clock: Mutex<Option<(Timestamp, Instant)>>,
    /// The machine's root and network, where they are on this one. Else the agent is asked for what they are needed for.
    access: Option<MachineAccess>,
}

impl ConnectedAgent {
    pub(super) async fn on_socket(socket: &Path) -> Result<Self, String> {
        let access = MachineAccess::of_socket(socket).await.map_err(|error| chain_text(&error))?;
        Ok(Self {
            client: HypervisorAgentClient::on_socket(socket),
            told: Arc::default(),
            clock: Mutex::default(),
            access: Some(access),
        })
    }

    pub(super) fn on_network(channel: Channel) -> Self {
        Self {
            client: HypervisorAgentClient::on_channel(channel),
            told: Arc::default(),
            clock: Mutex::default(),
            access: None,
        }
    }

    /// Tells of each new revision of the machine's state, until the agent ends.
    pub(super) async fn listen(&self, changed: Arc<Notify>) -> Result<JoinHandle<()>, String> {
        let mut revisions = self.client.watch(WATCH).await.map_err(|error| chain_text(&error))?;
        // The first one is that of now.
        revisions.next().await;
        let told = Arc::clone(&self.told);
        Ok(tokio::spawn(async move {
            while let Some(revision) = revisions.next().await {
                told.store(revision, Ordering::Relaxed);
                changed.notify_one();
            }
            changed.notify_one();
        }))
    }

    /// Who told of a change need not look again at what was seen then.
    pub(super) async fn observe(&self) -> Result<MachineState, UnseenMachine> {
        let told = self.told.swap(0, Ordering::Relaxed);
        let (state, time) = self.client.state_with_clock(told, LOOK).await.map_err(|error| {
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

    /// What time it is on the machine.
    pub(super) fn time(&self) -> Option<Timestamp> {
        let (time, told) = (*self.clock.lock().unwrap_or_else(PoisonError::into_inner))?;
        time.checked_add(told.elapsed()).ok()
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
                    tracing::info!(machine = %name, held, "is put off");
                }
                let effects = usize::try_from(finished.effects).unwrap_or(usize::MAX);
                ApplyOutcome { effects, failures: finished.failures }
            }
            Err(error) => ApplyOutcome { effects: 0, failures: vec![chain_text(&error)] },
        }
    }

    /// The agent reads its owner's record with each config that it takes.
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

    /// Gives it another certificate, for a key that it makes.
    pub(super) async fn renew(&self, certifying: &AgentCertification<'_>) -> Result<(), String> {
        let request = self.client.request_certificate(LOOK).await.map_err(|error| chain_text(&error))?;
        let GrantedIdentity { certificate, trust } = certifying.grant(&request)?;
        self.client.give_identity(Some(certificate), trust, LOOK).await.map_err(|error| chain_text(&error))
    }

    /// Tells it whom to trust.
    pub(super) async fn trust(&self, certifying: &AgentCertification<'_>) -> Result<(), String> {
        self.client.give_identity(None, certifying.trust()?, LOOK).await.map_err(|error| chain_text(&error))
    }

    pub(super) async fn dial(&self, address: SocketAddr, patience: Duration) -> io::Result<MachineConnection> {
        match &self.access {
            Some(access) => access.dial(address, patience).await.map(MachineConnection::from).map_err(io::Error::other),
            None => self.client.dial(address, patience).await.map_err(io::Error::other),
        }
    }
}
