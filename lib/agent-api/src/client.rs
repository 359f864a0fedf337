//! The driver's client of `keelway.agent.v1`.

mod network;

use std::{collections::BTreeMap, io, net::SocketAddr, path::Path, time::Duration};

use futures::{Stream, StreamExt};
use hyper_util::rt::TokioIo;
use keelway_api::{
    jiff::Timestamp,
    machine::{Digest, MachineConfig, MachineEvent, MachineState},
    name::{HypervisorName, InstallationId, PodName},
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::{
    leader::Leader,
    log::{Log, LogOptions},
};
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    MAX_MESSAGE,
    enrollment::DriverTrust,
    proto::{self, agent_client::AgentClient, apply_event::Event, exchange_client::ExchangeClient},
    relay,
    wire::{RevisedConfig, WireError},
};

pub use network::{DialTarget, channel};

/// A call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentClientError {
    /// The agent cannot be reached, or cannot reach its runtime.
    #[error("{what}")]
    Unavailable {
        /// What could not be done.
        what: &'static str,
        /// The message of the agent or of the transport.
        #[source]
        why: RemoteError,
    },
    /// The agent responds, but its runtime does not.
    #[error("the machine's container runtime does not respond to its agent")]
    RuntimeSilent(#[source] RemoteError),
    /// The agent does not implement the call.
    #[error("the machine's agent is of an earlier release: upgrade keelway-hypervisor-agent")]
    TooOld,
    /// The agent refused the call.
    #[error("the machine's agent refused")]
    Refused(#[source] RemoteError),
    /// The agent did not respond in time.
    #[error("the machine's agent did not respond within {} s", within.as_secs())]
    TimedOut {
        /// The deadline of the call.
        within: Duration,
    },
    /// The response of the agent cannot be decoded.
    #[error("cannot decode the response of the machine's agent")]
    Malformed(#[from] WireError),
    /// The agent ended the response early. A config that it accepted stays in effect.
    #[error("the connection to the machine's agent ended; the agent continues on its own")]
    BrokeOff,
}

/// The message of the remote side.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RemoteError(String);

/// A config to send to a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDelivery {
    /// The config, without the pods whose content is unchanged.
    pub config: MachineConfig,
    /// The unchanged pods, with the digests of their content. The agent has their content.
    pub unchanged: BTreeMap<PodName, Digest>,
    /// The digest of the config with all of its pods. `None` if the caller has not computed it.
    pub digest: Option<String>,
}

impl From<MachineConfig> for ConfigDelivery {
    /// Returns a delivery of the whole config.
    fn from(config: MachineConfig) -> Self {
        Self { config, unchanged: BTreeMap::new(), digest: None }
    }
}

impl From<&MachineConfig> for ConfigDelivery {
    fn from(config: &MachineConfig) -> Self {
        config.clone().into()
    }
}

/// The result of an applied config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigOutcome {
    /// How many effects were done.
    pub effects: u64,
    /// What failed, one message each.
    pub failures: Vec<String>,
    /// What is postponed, one message each.
    pub postponed: Vec<String>,
}

/// An order to make the data of an etcd member from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRestoreOrder {
    /// The driver.
    pub leader: Leader,
    /// The member.
    pub pod: PodName,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The length of the snapshot in bytes.
    pub length: u64,
}

/// A client of an agent, over its Unix socket or a network. Clones are cheap and share one connection.
#[derive(Debug, Clone)]
pub struct HypervisorAgentClient {
    agent: AgentClient<Channel>,
    channel: Channel,
}

impl HypervisorAgentClient {
    /// Returns a client of the agent behind a socket, by its absolute path. Connects with the first call.
    #[must_use]
    pub fn on_socket(path: &Path) -> Self {
        let path = path.to_owned();
        let connector = tower::service_fn(move |_: http::Uri| {
            let dialling = UnixStream::connect(path.clone());
            async { Ok::<_, io::Error>(TokioIo::new(dialling.await?)) }
        });
        // The connector ignores the name. gRPC servers refuse an authority that is a path.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Self::on_channel(channel)
    }

    /// Returns a client that uses an existing channel, such as [one over a network](channel).
    #[must_use]
    pub fn on_channel(channel: Channel) -> Self {
        let agent = AgentClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        Self { agent, channel }
    }

    /// Returns the current state of the machine.
    pub async fn state(&self, within: Duration) -> Result<MachineState, AgentClientError> {
        self.state_of(0, within).await
    }

    /// Returns the state of the machine at a revision from [`HypervisorAgentClient::watch`], or later. With 0, the agent observes the machine again.
    pub async fn state_of(&self, revision: u64, within: Duration) -> Result<MachineState, AgentClientError> {
        self.state_with_clock(revision, within).await.map(|(state, _)| state)
    }

    /// Returns the state as [`HypervisorAgentClient::state_of`] does, and the time on the machine. The time is `None` if the agent does not report
    /// it.
    pub async fn state_with_clock(
        &self,
        revision: u64,
        within: Duration,
    ) -> Result<(MachineState, Option<Timestamp>), AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.get_state(proto::GetStateRequest { revision })).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let state = answer.map_err(|status| failed("the machine's agent cannot observe the machine", &status))?;
        let proto::GetStateResponse { state, now } = state.into_inner();
        let state = state.ok_or(WireError::Missing("the state"))?;
        Ok((state.try_into()?, now.parse().ok()))
    }

    /// Sends a config, and waits until the agent has done what can be done. If the caller stops waiting, the agent continues.
    ///
    /// # Errors
    /// Also returns [`AgentClientError::Unavailable`] if unchanged pods differ from those that the agent has. The caller must then send the whole
    /// config.
    pub async fn apply(
        &self,
        config: impl Into<ConfigDelivery>,
        on_effect: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<ConfigOutcome, AgentClientError> {
        const WHAT: &str = "cannot send the config to the machine's agent";
        let ConfigDelivery { config, unchanged: same, digest } = config.into();
        let pod =
            |(name, digest): (&PodName, &Digest)| proto::SamePod { name: Some(name.into()), digest: digest.to_vec() };
        let same = same.iter().map(pod).collect();
        let digest = digest.unwrap_or_else(|| config.digest());
        let revised = RevisedConfig { config: &config, digests: &config.pod_digests() };
        let request = proto::ApplyRequest { config: Some(revised.into()), digest, same };
        // Frees the memory before the wait: the request has its own copy.
        drop(config);
        let mut agent = self.agent.clone();
        let mut events = agent.apply(request).await.map_err(|status| failed(WHAT, &status))?.into_inner();
        loop {
            let event = events.message().await.map_err(|status| failed(WHAT, &status))?;
            match event.ok_or(AgentClientError::BrokeOff)?.event {
                Some(Event::Effect(effect)) => on_effect(&effect),
                Some(Event::Finished(end)) => {
                    return Ok(ConfigOutcome { effects: end.effects, failures: end.failures, postponed: end.held });
                }
                Some(Event::Accepted(_)) | None => {}
            }
        }
    }

    /// Announces the leader that drives the machine. Returns the newest term that the agent knows.
    pub async fn fence(&self, leader: &Leader, within: Duration) -> Result<u64, AgentClientError> {
        let request = proto::FenceRequest { installation: leader.installation.to_string(), term: leader.term };
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.fence(request)).await.map_err(|_| AgentClientError::TimedOut { within })?;
        let answer =
            answer.map_err(|status| failed("cannot send the driver's term to the machine's agent", &status))?;
        Ok(answer.into_inner().term)
    }

    /// Returns the config of the machine, if it has one. The agent returns it only to the installation that the machine obeys.
    pub async fn config(
        &self,
        installation: &InstallationId,
        within: Duration,
    ) -> Result<Option<MachineConfig>, AgentClientError> {
        let request = proto::GetConfigRequest { installation: installation.to_string() };
        let mut agent = self.agent.clone();
        let answer =
            timeout(within, agent.get_config(request)).await.map_err(|_| AgentClientError::TimedOut { within })?;
        let answer = match answer {
            Err(status) if status.code() == Code::Unimplemented => return Err(AgentClientError::TooOld),
            answer => answer.map_err(|status| failed("cannot read the config of the machine's agent", &status))?,
        };
        Ok(answer.into_inner().config.map(TryInto::try_into).transpose()?)
    }

    /// Returns the events of the machine, the newest last. With `follow`, also returns further events until the agent ends.
    pub async fn events(
        &self,
        follow: bool,
        within: Duration,
    ) -> Result<impl Stream<Item = Result<MachineEvent, AgentClientError>> + Send + Unpin + use<>, AgentClientError>
    {
        const WHAT: &str = "cannot read the events of the machine's agent";
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.watch_events(proto::WatchEventsRequest { follow })).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let events = answer.map_err(|status| failed(WHAT, &status))?.into_inner();
        Ok(Box::pin(events.map(|event| Ok(event.map_err(|status| failed(WHAT, &status))?.try_into()?))))
    }

    /// Opens a TCP connection from the machine's network within the given time.
    pub async fn dial(&self, address: SocketAddr, within: Duration) -> Result<MachineConnection, AgentClientError> {
        let first = proto::DialRequest { address: address.to_string(), data: Vec::new() };
        let message = |data| proto::DialRequest { address: String::new(), data };
        let mut agent = self.agent.clone();
        let opening =
            relay::open(first, message, move |requests| async move { agent.dial(requests).await }, |said| said.data);
        let opened = timeout(within, opening).await.map_err(|_| AgentClientError::TimedOut { within })?;
        opened.map_err(|status| failed("the machine's agent cannot connect", &status))
    }

    /// Opens a connection to the agent of another machine, which waits at this agent for calls.
    pub async fn call(
        &self,
        machine: &HypervisorName,
        within: Duration,
    ) -> Result<MachineConnection, AgentClientError> {
        let first = proto::CallRequest { machine: machine.to_string(), data: Vec::new() };
        let message = |data| proto::CallRequest { machine: String::new(), data };
        let mut exchange = ExchangeClient::new(self.channel.clone());
        let opening =
            relay::open(first, message, move |requests| async move { exchange.call(requests).await }, |said| said.data);
        let opened = timeout(within, opening).await.map_err(|_| AgentClientError::TimedOut { within })?;
        opened.map_err(|status| failed("cannot call the agent through the machine at which it waits", &status))
    }

    /// Returns the logs of a component, grouped by container, the newest last. `None` if it has no logs on the machine.
    pub async fn logs(&self, pod: &PodName, within: Duration) -> Result<Option<Vec<Log>>, AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.list_logs(proto::ListLogsRequest { pod: Some(pod.into()) })).await;
        let answer = match answer.map_err(|_| AgentClientError::TimedOut { within })? {
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            answer => answer.map_err(|status| failed("cannot list the logs of the machine's agent", &status))?,
        };
        let logs = answer.into_inner().logs;
        Ok(Some(logs.into_iter().map(|proto::Log { container, attempt }| Log { container, attempt }).collect()))
    }

    /// Streams the selected lines of a log.
    pub async fn read_log(
        &self,
        pod: &PodName,
        log: &Log,
        wanted: &LogOptions,
        within: Duration,
    ) -> Result<impl Stream<Item = Result<Vec<u8>, AgentClientError>> + Send + Unpin + use<>, AgentClientError> {
        const WHAT: &str = "cannot read the log from the machine's agent";
        let request = proto::ReadLogRequest {
            pod: Some(pod.into()),
            log: Some(proto::Log { container: log.container.clone(), attempt: log.attempt }),
            tail: wanted.tail,
            since: wanted.since.map(|since| since.to_string()),
            timestamps: wanted.timestamps,
            follow: wanted.follow,
        };
        let mut agent = self.agent.clone();
        let answer =
            timeout(within, agent.read_log(request)).await.map_err(|_| AgentClientError::TimedOut { within })?;
        let text = answer.map_err(|status| failed(WHAT, &status))?.into_inner();
        Ok(Box::pin(text.map(|text| text.map(|text| text.text).map_err(|status| failed(WHAT, &status)))))
    }

    /// Makes the data of an etcd member from a snapshot, which the agent receives part by part.
    pub async fn restore_data(
        &self,
        order: DataRestoreOrder,
        parts: impl Stream<Item = Vec<u8>> + Send + 'static,
        within: Duration,
    ) -> Result<(), AgentClientError> {
        let DataRestoreOrder { leader, pod, command, length } = order;
        let (installation, term) = (leader.installation.to_string(), leader.term);
        let order = proto::RestoreOrder { installation, term, pod: Some((&pod).into()), command, length };
        let first = proto::RestoreDataRequest { order: Some(order), data: Vec::new() };
        let rest = parts.map(|data| proto::RestoreDataRequest { order: None, data });
        let requests = futures::stream::once(std::future::ready(first)).chain(rest);
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.restore_data(requests)).await;
        match answer.map_err(|_| AgentClientError::TimedOut { within })? {
            Err(status) if status.code() == Code::Unimplemented => Err(AgentClientError::TooOld),
            answer => {
                answer.map(drop).map_err(|status| failed("the machine's agent cannot restore the snapshot", &status))
            }
        }
    }

    /// Makes the machine obey an installation, and replaces any earlier owner.
    pub async fn adopt(&self, installation: &InstallationId, within: Duration) -> Result<(), AgentClientError> {
        let mut agent = self.agent.clone();
        let request = proto::AdoptRequest { installation: installation.to_string() };
        let answer = timeout(within, agent.adopt(request)).await.map_err(|_| AgentClientError::TimedOut { within })?;
        answer.map_err(|status| failed("cannot record the machine's owner", &status))?;
        Ok(())
    }

    /// Makes the agent create a new key. Returns its signing request, as PEM.
    pub async fn request_certificate(&self, within: Duration) -> Result<String, AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.request_certificate(proto::RequestCertificateRequest {})).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let answer = answer.map_err(|status| failed("the machine's agent sent no certificate request", &status))?;
        Ok(answer.into_inner().signing_request)
    }

    /// Sends the trusted authorities, and the certificate that the agent requested. Without a certificate, the agent keeps the one that it has.
    pub async fn give_identity(
        &self,
        certificate: Option<String>,
        trust: DriverTrust,
        within: Duration,
    ) -> Result<(), AgentClientError> {
        let DriverTrust { authorities, revoked } = trust;
        let request = proto::GiveIdentityRequest { certificate, authorities, revoked };
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.give_identity(request)).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        answer.map_err(|status| failed("the machine's agent did not accept its certificate", &status))?;
        Ok(())
    }

    /// Streams the revisions of the machine's state: the current one at once, then each new one. Ends with the connection.
    pub async fn watch(
        &self,
        within: Duration,
    ) -> Result<impl Stream<Item = u64> + Send + Unpin + use<>, AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.watch_state(proto::WatchStateRequest {})).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let changes = answer.map_err(|status| failed("cannot watch the machine's agent", &status))?.into_inner();
        Ok(Box::pin(
            changes
                .take_while(|change| std::future::ready(change.is_ok()))
                .filter_map(|change| std::future::ready(change.ok().map(|change| change.revision))),
        ))
    }
}

fn failed(what: &'static str, status: &Status) -> AgentClientError {
    let words = RemoteError(match status.message() {
        "" => format!("{:?}", status.code()),
        words => words.to_owned(),
    });
    if status.code() == Code::DeadlineExceeded {
        return AgentClientError::RuntimeSilent(words);
    }
    let refused = [Code::FailedPrecondition, Code::InvalidArgument, Code::ResourceExhausted, Code::Internal];
    if refused.contains(&status.code()) {
        AgentClientError::Refused(words)
    } else {
        AgentClientError::Unavailable { what, why: words }
    }
}
