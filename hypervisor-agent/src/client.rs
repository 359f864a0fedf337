//! The driver's side of `keelway.agent.v1`.

mod network;

use std::{collections::BTreeMap, io, net::SocketAddr, path::Path, time::Duration};

use futures::{Stream, StreamExt};
use hyper_util::rt::TokioIo;
use keelway_api::{
    jiff::Timestamp,
    machine::{Digest, MachineConfig, MachineEvent, MachineState},
    name::{HypervisorName, InstallationId, PodName},
};
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    agent::MAX_MESSAGE,
    connection::MachineConnection,
    enrollment::DriverTrust,
    files::Log,
    leader::Leader,
    logs::LogOptions,
    proto::{self, agent_client::AgentClient, apply_event::Event, exchange_client::ExchangeClient},
    relay,
    wire::{RevisedConfig, WireError},
};

pub use network::{DialTarget, channel};

/// Why an agent did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum AgentClientError {
    /// It cannot be reached, or it cannot reach its runtime.
    #[error("{what}")]
    Unavailable {
        /// What could not be done.
        what: &'static str,
        /// Why, in the other side's words.
        #[source]
        why: RemoteError,
    },
    /// It answers, and its runtime does not.
    #[error("the machine's container runtime does not answer its agent")]
    RuntimeSilent(#[source] RemoteError),
    /// It does not know the call.
    #[error("the machine's agent is of an earlier release: upgrade keelway-hypervisor-agent")]
    TooOld,
    /// It refused.
    #[error("the machine's agent refuses")]
    Refused(#[source] RemoteError),
    /// It did not answer in time.
    #[error("the machine's agent does not answer within {} s", within.as_secs())]
    TimedOut {
        /// How long was waited.
        within: Duration,
    },
    /// Its answer means nothing here.
    #[error("the answer of the machine's agent makes no sense")]
    Malformed(#[from] WireError),
    /// It broke off before it was done. What it was given stays in effect.
    #[error("the machine's agent broke off; it goes on by itself")]
    BrokeOff,
}

/// The words of the other side.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RemoteError(String);

/// A config on its way to a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDelivery {
    /// The config, without the pods that are the same as before.
    pub config: MachineConfig,
    /// Those, with the digests of their content: the machine's agent has them.
    pub unchanged: BTreeMap<PodName, Digest>,
    /// Of the config with all of its pods, for who knows it.
    pub digest: Option<String>,
}

impl From<MachineConfig> for ConfigDelivery {
    /// The whole config.
    fn from(config: MachineConfig) -> Self {
        Self { config, unchanged: BTreeMap::new(), digest: None }
    }
}

impl From<&MachineConfig> for ConfigDelivery {
    fn from(config: &MachineConfig) -> Self {
        config.clone().into()
    }
}

/// What came of a config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigOutcome {
    /// Effects that were done.
    pub effects: u64,
    /// What failed, each in words for people.
    pub failures: Vec<String>,
    /// What is put off, each in words for people.
    pub postponed: Vec<String>,
}

/// An agent behind its own Unix socket, or behind its port. Cheap to clone; clones share one connection.
#[derive(Debug, Clone)]
pub struct HypervisorAgentClient {
    agent: AgentClient<Channel>,
    channel: Channel,
}

impl HypervisorAgentClient {
    /// The agent behind a socket, given by its absolute path. Nothing is dialled yet.
    #[must_use]
    pub fn on_socket(path: &Path) -> Self {
        let path = path.to_owned();
        let connector = tower::service_fn(move |_: http::Uri| {
            let dialling = UnixStream::connect(path.clone());
            async { Ok::<_, io::Error>(TokioIo::new(dialling.await?)) }
        });
        // The name stands for nothing; gRPC servers want one that is not a path.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Self::on_channel(channel)
    }

    /// The agent at the end of a channel, such as [one over a network](channel).
    #[must_use]
    pub fn on_channel(channel: Channel) -> Self {
        let agent = AgentClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        Self { agent, channel }
    }

    /// What is on the machine now.
    pub async fn state(&self, within: Duration) -> Result<MachineState, AgentClientError> {
        self.state_of(0, within).await
    }

    /// What the agent saw when it told of a revision of the machine's state, or later. 0: the machine is looked at anew.
    pub async fn state_of(&self, revision: u64, within: Duration) -> Result<MachineState, AgentClientError> {
        self.state_with_clock(revision, within).await.map(|(state, _)| state)
    }

    /// The same, with what time it is on the machine; none where its agent does not tell.
    pub async fn state_with_clock(
        &self,
        revision: u64,
        within: Duration,
    ) -> Result<(MachineState, Option<Timestamp>), AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.get_state(proto::GetStateRequest { revision })).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let state = answer.map_err(|status| failed("the machine's agent cannot see the machine", &status))?;
        let proto::GetStateResponse { state, now } = state.into_inner();
        let state = state.ok_or(WireError::Missing("the state"))?;
        Ok((state.try_into()?, now.parse().ok()))
    }

    /// Hands over a config, and waits until the agent did what can be done. Who stops waiting stops nothing.
    ///
    /// # Errors
    /// Also [`AgentClientError::Unavailable`] where pods are not the same as those that the agent has: it takes the whole config.
    pub async fn apply(
        &self,
        config: impl Into<ConfigDelivery>,
        on_effect: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<ConfigOutcome, AgentClientError> {
        const WHAT: &str = "the machine's agent cannot be given its config";
        let ConfigDelivery { config, unchanged: same, digest } = config.into();
        let pod =
            |(name, digest): (&PodName, &Digest)| proto::SamePod { name: Some(name.into()), digest: digest.to_vec() };
        let same = same.iter().map(pod).collect();
        let digest = digest.unwrap_or_else(|| config.digest());
        let revised = RevisedConfig { config: &config, digests: &config.pod_digests() };
        let request = proto::ApplyRequest { config: Some(revised.into()), digest, same };
        // It may take a while, and the config is on its way.
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

    /// Tells the machine which leader drives it. Returns the newest one that it was told of.
    pub async fn fence(&self, leader: &Leader, within: Duration) -> Result<u64, AgentClientError> {
        let request = proto::FenceRequest { installation: leader.installation.to_string(), term: leader.term };
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.fence(request)).await.map_err(|_| AgentClientError::TimedOut { within })?;
        let answer = answer.map_err(|status| failed("the machine's agent cannot be told who leads", &status))?;
        Ok(answer.into_inner().term)
    }

    /// The config that the machine holds, if it holds one. The agent gives it only to the installation that the machine obeys.
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
            answer => answer.map_err(|status| failed("the machine's agent does not send its config", &status))?,
        };
        Ok(answer.into_inner().config.map(TryInto::try_into).transpose()?)
    }

    /// What happened on the machine, the newest last; followed, also what happens from now on, until the agent ends.
    pub async fn events(
        &self,
        follow: bool,
        within: Duration,
    ) -> Result<impl Stream<Item = Result<MachineEvent, AgentClientError>> + Send + Unpin + use<>, AgentClientError>
    {
        const WHAT: &str = "the machine's agent does not tell what happened";
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.watch_events(proto::WatchEventsRequest { follow })).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let events = answer.map_err(|status| failed(WHAT, &status))?.into_inner();
        Ok(Box::pin(events.map(|event| Ok(event.map_err(|status| failed(WHAT, &status))?.try_into()?))))
    }

    /// A TCP connection from the machine's network, made within the given time.
    pub async fn dial(&self, address: SocketAddr, within: Duration) -> Result<MachineConnection, AgentClientError> {
        let first = proto::DialRequest { address: address.to_string(), data: Vec::new() };
        let message = |data| proto::DialRequest { address: String::new(), data };
        let mut agent = self.agent.clone();
        let opening =
            relay::open(first, message, move |requests| async move { agent.dial(requests).await }, |said| said.data);
        let opened = timeout(within, opening).await.map_err(|_| AgentClientError::TimedOut { within })?;
        opened.map_err(|status| failed("the machine's agent cannot connect", &status))
    }

    /// A connection to the agent of another machine, which waits at this one to be called.
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
        opened.map_err(|status| failed("the agent cannot be called where it is to wait", &status))
    }

    /// The logs of a component, those of one container together and the newest last; `None` where it has none on the machine.
    pub async fn logs(&self, pod: &PodName, within: Duration) -> Result<Option<Vec<Log>>, AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.list_logs(proto::ListLogsRequest { pod: Some(pod.into()) })).await;
        let answer = match answer.map_err(|_| AgentClientError::TimedOut { within })? {
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            answer => answer.map_err(|status| failed("the machine's agent does not tell of logs", &status))?,
        };
        let logs = answer.into_inner().logs;
        Ok(Some(logs.into_iter().map(|proto::Log { container, attempt }| Log { container, attempt }).collect()))
    }

    /// The lines of a log that are wanted, as they come.
    pub async fn read_log(
        &self,
        pod: &PodName,
        log: &Log,
        wanted: &LogOptions,
        within: Duration,
    ) -> Result<impl Stream<Item = Result<Vec<u8>, AgentClientError>> + Send + Unpin + use<>, AgentClientError> {
        const WHAT: &str = "the machine's agent does not tell what is in the log";
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

    /// Makes the machine obey an installation, whoever it obeyed before.
    pub async fn adopt(&self, installation: &InstallationId, within: Duration) -> Result<(), AgentClientError> {
        let mut agent = self.agent.clone();
        let request = proto::AdoptRequest { installation: installation.to_string() };
        let answer = timeout(within, agent.adopt(request)).await.map_err(|_| AgentClientError::TimedOut { within })?;
        answer.map_err(|status| failed("the machine's owner could not be recorded", &status))?;
        Ok(())
    }

    /// Has the agent make a new key. Returns its request for a certificate, PEM.
    pub async fn request_certificate(&self, within: Duration) -> Result<String, AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.request_certificate(proto::RequestCertificateRequest {})).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let answer = answer.map_err(|status| failed("the machine's agent asks for no certificate", &status))?;
        Ok(answer.into_inner().signing_request)
    }

    /// Gives the agent the certificate that it asked for, or goes on with the one before, and tells it whom to trust.
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
        answer.map_err(|status| failed("the machine's agent does not take its certificate", &status))?;
        Ok(())
    }

    /// The revisions of the machine's state: the present one at once, then each new one. Ends with the connection.
    pub async fn watch(
        &self,
        within: Duration,
    ) -> Result<impl Stream<Item = u64> + Send + Unpin + use<>, AgentClientError> {
        let mut agent = self.agent.clone();
        let answer = timeout(within, agent.watch_state(proto::WatchStateRequest {})).await;
        let answer = answer.map_err(|_| AgentClientError::TimedOut { within })?;
        let changes = answer.map_err(|status| failed("the machine's agent cannot be watched", &status))?.into_inner();
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
