//! The gRPC service `keelway.agent.v1`.

use std::{io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use keelway_agent_api::{
    MAX_MESSAGE,
    enrollment::DriverTrust,
    proto::{
        self,
        agent_server::{Agent, AgentServer},
        apply_event::Event,
        exchange_server::ExchangeServer,
    },
    relay,
    wire::{self, WireError},
};
use keelway_api::{jiff::Timestamp, name::NameError};
use keelway_base::error_chain::chain_text;
use keelway_cri::proxy::{
    connection::MachineConnection,
    fanout::Fanout,
    passthrough::CriPassthrough,
    streams::{PendingStreams, address_of},
};
use keelway_machine::leader::Leader;
use keelway_machine_io::{
    files::MachineFileError,
    local::{FilesError, LocalMachine},
    observe::ObserveError,
};
use tokio::sync::{
    Semaphore,
    broadcast::error::RecvError,
    mpsc::{self, Sender},
};
use tokio_stream::wrappers::{BroadcastStream, ReceiverStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, service::Routes, transport::Server};

use super::{
    AgentListeners,
    config_store::{AcceptError, ConfigError, ConfigStore, FenceError, StoredConfig, UnfitConfig},
    data_restore::DataRestorer,
    exchange::Exchange,
    journal::EventJournal,
    log_stream,
    network::AgentTlsIdentity,
    reconciler_channel::ReconcilerChannel,
};
use crate::enrollment::RefusedEnrollment;

/// How long a connection from the machine's network may take.
const DIAL: Duration = Duration::from_secs(10);
/// How many lines of progress to one caller can be in flight.
const ON_THE_WAY: usize = 64;

pub(super) struct AgentService {
    pub(super) machine: Arc<LocalMachine>,
    pub(super) config_store: Arc<ConfigStore>,
    pub(super) channel: Arc<ReconcilerChannel>,
    pub(super) journal: Arc<EventJournal>,
    /// The agent's identity on a network, if it is on one.
    pub(super) tls_identity: Option<Arc<AgentTlsIdentity>>,
    /// Limits how many logs are read at a time.
    pub(super) log_permits: Arc<Semaphore>,
    /// Makes the data of etcd members from snapshots.
    pub(super) restorer: DataRestorer,
    /// An id that is unique to this run of the agent.
    pub(super) id: String,
}

/// Serves until `stop` is cancelled. Open connections are then closed; an apply continues without its caller.
pub(super) async fn serve(
    service: AgentService,
    events: Arc<Fanout>,
    entrances: AgentListeners,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    // A caller that sends the runtime many requests, or does not read its responses, delays only its own requests.
    let runtime = service.machine.runtime().on_own_connection().channel();
    let streams = Arc::new(streams(&service.machine));
    let routes = Routes::new(AgentServer::new(service).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ExchangeServer::new(Exchange::default()))
        .add_service(CriPassthrough::<false>::new(runtime.clone(), Arc::clone(&streams), Some(events)))
        .add_service(CriPassthrough::<true>::new(runtime, Arc::clone(&streams), None));
    let AgentListeners { socket, network } = entrances;
    let on_network = async {
        let Some(network) = network else { return std::future::pending().await };
        network.serve(routes.clone(), streams, stop.clone()).await;
    };
    tokio::select! {
        served = Server::builder().add_routes(routes.clone()).serve_with_incoming(socket.connections()) => served,
        () = on_network => Ok(()),
        () = stop.cancelled() => Ok(()),
    }
}

/// Returns the streams of the machine's runtime, which serves them on its loopback.
fn streams(machine: &Arc<LocalMachine>) -> PendingStreams {
    let machine = Arc::clone(machine);
    PendingStreams::new(move |url| {
        let (machine, address) = (Arc::clone(&machine), address_of(url));
        async move { machine.dial(address?, DIAL).await.map(MachineConnection::from).map_err(io::Error::other) }
    })
}

type ServiceStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for AgentService {
    type ApplyStream = ServiceStream<proto::ApplyEvent>;
    type DialStream = ServiceStream<proto::DialResponse>;
    type ReadLogStream = ServiceStream<proto::LogText>;
    type WatchEventsStream = ServiceStream<proto::MachineEvent>;
    type WatchStateStream = ServiceStream<proto::StateChange>;

    async fn get_state(
        &self,
        request: Request<proto::GetStateRequest>,
    ) -> Result<Response<proto::GetStateResponse>, Status> {
        let known = self.config_store.current();
        let known = self.channel.found(request.into_inner().revision, known.as_deref().map(|kept| &kept.fence));
        let mut state = match known {
            Some(known) => Arc::unwrap_or_clone(known),
            None => self.machine.observe().await.map_err(|error| unseen(&error))?,
        };
        // A config that is recorded but not held by the agent has to be sent again.
        state.applied = self.config_store.current().map(|kept| kept.fence.clone());
        state.term = self.config_store.leader_term(state.owner.as_ref());
        {
            let status = self.channel.status();
            let status = status.borrow();
            state.healthy.clone_from(&status.healthy);
            state.failures.clone_from(&status.failures);
            for (pod, figures) in &mut state.figures {
                figures.no_space = status.no_space.contains(pod);
            }
        }
        state.failures.extend(self.config_store.lost_config().map(|lost| lost.failure()));
        if let Some(standing) = &self.tls_identity {
            state.identity = standing.identity().await;
        }
        state.agent_id = Some(self.id.clone());
        state.prefetches = true;
        if let Some(system) = &mut state.system {
            system.agent_version = Some(env!("CARGO_PKG_VERSION").to_owned());
        }
        Ok(Response::new(proto::GetStateResponse { state: Some((&state).into()), now: Timestamp::now().to_string() }))
    }

    async fn apply(&self, request: Request<proto::ApplyRequest>) -> Result<Response<Self::ApplyStream>, Status> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("the request has no config"))?;
        let config = wire::read_config(config).map_err(|error| not_understood(&error))?;
        let same = wire::same_pods(request.same).map_err(|error| not_understood(&error))?;
        let before = self.config_store.current();
        let kept = StoredConfig::sent(before.as_deref(), config, same, request.digest);
        let kept = kept.map_err(|error| match error {
            UnfitConfig::UnknownPod(_) => Status::not_found(error.to_string()),
            UnfitConfig::OtherDigest => Status::invalid_argument(error.to_string()),
        })?;
        let mut effects = self.channel.effects();
        let status = self.channel.status();
        let before = status.borrow().effects;
        // Runs in a separate task: disk and memory stay consistent even if the caller disconnects between the two writes.
        let book = Arc::clone(&self.config_store);
        let accepting = tokio::spawn(async move { book.accept(kept).await });
        let accepted = accepting.await.map_err(|_| Status::internal("the config was not checked completely"))?;
        accepted.map_err(|error| refused(&error))?;
        let asked = self.channel.request_look();
        let (sender, receiver) = mpsc::channel(ON_THE_WAY);
        tokio::spawn(async move {
            let mut finishing = std::pin::pin!(finished(status, asked, before));
            send_progress(&sender, Event::Accepted(proto::Accepted {}));
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    effect = effects.recv() => match effect {
                        Ok(effect) => send_progress(&sender, Event::Effect(effect)),
                        Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return,
                    },
                    end = &mut finishing => {
                        let end = proto::ApplyEvent { event: Some(Event::Finished(end)) };
                        // Fails if the caller has disconnected.
                        let _ = sender.send(Ok(end)).await;
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn fence(&self, request: Request<proto::FenceRequest>) -> Result<Response<proto::FenceResponse>, Status> {
        let proto::FenceRequest { installation, term } = request.into_inner();
        let installation =
            installation.parse().map_err(|error: NameError| Status::invalid_argument(error.to_string()))?;
        // Runs in a separate task: disk and memory stay consistent even if the caller disconnects between the two writes.
        let book = Arc::clone(&self.config_store);
        let fencing = tokio::spawn(async move { book.fence(Leader { installation, term }).await });
        let fenced = fencing.await.map_err(|_| Status::internal("the driver's term was not stored"))?;
        let term = fenced.map_err(|error| match &error {
            FenceError::Refused(_) => Status::failed_precondition(chain_text(&error)),
            FenceError::Keep(_) => Status::internal(chain_text(&error)),
        })?;
        Ok(Response::new(proto::FenceResponse { term }))
    }

    async fn get_config(
        &self,
        request: Request<proto::GetConfigRequest>,
    ) -> Result<Response<proto::GetConfigResponse>, Status> {
        let installation = request.into_inner().installation.parse();
        let installation = installation.map_err(|error: NameError| Status::invalid_argument(error.to_string()))?;
        let kept = self.config_store.config_for(&installation).await.map_err(|error| match &error {
            ConfigError::Records(_) => Status::internal(chain_text(&error)),
            ConfigError::Refused(_) | ConfigError::Unreadable(_) => Status::failed_precondition(chain_text(&error)),
        })?;
        Ok(Response::new(proto::GetConfigResponse { config: kept.map(|kept| kept.revised().into()) }))
    }

    async fn watch_state(
        &self,
        _request: Request<proto::WatchStateRequest>,
    ) -> Result<Response<Self::WatchStateStream>, Status> {
        let revisions = WatchStream::new(self.channel.status()).map(|status| status.revision);
        let changes = revisions.scan(None, |last, revision| {
            let news = last.replace(revision) != Some(revision);
            std::future::ready(Some(news.then_some(revision)))
        });
        let changes = changes.filter_map(std::future::ready);
        Ok(Response::new(Box::pin(changes.map(|revision| Ok(proto::StateChange { revision })))))
    }

    async fn watch_events(
        &self,
        request: Request<proto::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let (known, following) = self.journal.read();
        let known = futures::stream::iter(known);
        let events: ServiceStream<proto::MachineEvent> = if request.into_inner().follow {
            let following = BroadcastStream::new(following).filter_map(|event| std::future::ready(event.ok()));
            Box::pin(known.chain(following).map(|event| Ok((&event).into())))
        } else {
            Box::pin(known.map(|event| Ok((&event).into())))
        };
        Ok(Response::new(events))
    }

    async fn dial(
        &self,
        request: Request<Streaming<proto::DialRequest>>,
    ) -> Result<Response<Self::DialStream>, Status> {
        let mut requests = request.into_inner();
        let first =
            requests.message().await?.ok_or_else(|| Status::invalid_argument("the first message has no address"))?;
        let address = first.address.parse();
        let address: SocketAddr =
            address.map_err(|_| Status::invalid_argument(format!("{:?} is not ADDRESS:PORT", first.address)))?;
        let stream = self.machine.dial(address, DIAL).await.map_err(|error| Status::unavailable(chain_text(&error)))?;
        let (sender, receiver) = mpsc::channel(relay::ON_THE_WAY);
        let from_caller = requests.map(|request| request.ok().map(|request| request.data));
        tokio::spawn(relay::relay(stream, sender, |data| Ok(proto::DialResponse { data }), from_caller));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn list_logs(
        &self,
        request: Request<proto::ListLogsRequest>,
    ) -> Result<Response<proto::ListLogsResponse>, Status> {
        let logs = log_stream::list(&self.machine, request.into_inner().pod).await?;
        Ok(Response::new(proto::ListLogsResponse { logs }))
    }

    async fn read_log(&self, request: Request<proto::ReadLogRequest>) -> Result<Response<Self::ReadLogStream>, Status> {
        Ok(Response::new(log_stream::stream_log(&self.machine, &self.log_permits, request.into_inner()).await?))
    }

    async fn adopt(&self, request: Request<proto::AdoptRequest>) -> Result<Response<proto::AdoptResponse>, Status> {
        let installation = request.into_inner().installation.parse();
        let installation = installation.map_err(|error: NameError| Status::invalid_argument(error.to_string()))?;
        let written = self.machine.access.write_owner(&installation).await;
        written.map_err(|error| Status::internal(chain_text(&error)))?;
        Ok(Response::new(proto::AdoptResponse {}))
    }

    async fn request_certificate(
        &self,
        _request: Request<proto::RequestCertificateRequest>,
    ) -> Result<Response<proto::RequestCertificateResponse>, Status> {
        let signing_request = self.tls_identity()?.ask().await.map_err(|error| not_taken(&error))?;
        Ok(Response::new(proto::RequestCertificateResponse { signing_request }))
    }

    async fn give_identity(
        &self,
        request: Request<proto::GiveIdentityRequest>,
    ) -> Result<Response<proto::GiveIdentityResponse>, Status> {
        let proto::GiveIdentityRequest { certificate, authorities, revoked } = request.into_inner();
        let standing = Arc::clone(self.tls_identity()?);
        // Runs in a separate task, so that a write is completed even if the caller disconnects.
        let taking =
            tokio::spawn(async move { standing.take(certificate, DriverTrust { authorities, revoked }).await });
        let taken = taking.await.map_err(|_| Status::internal("the certificate was not stored"))?;
        taken.map_err(|error| not_taken(&error))?;
        Ok(Response::new(proto::GiveIdentityResponse {}))
    }

    async fn restore_data(
        &self,
        request: Request<Streaming<proto::RestoreDataRequest>>,
    ) -> Result<Response<proto::RestoreDataResponse>, Status> {
        self.restorer.restore(request.into_inner()).await?;
        Ok(Response::new(proto::RestoreDataResponse {}))
    }
}

impl AgentService {
    fn tls_identity(&self) -> Result<&Arc<AgentTlsIdentity>, Status> {
        self.tls_identity.as_ref().ok_or_else(|| Status::failed_precondition("this agent does not listen on a network"))
    }
}

fn not_understood(error: &WireError) -> Status {
    Status::invalid_argument(chain_text(error))
}

fn not_taken(error: &RefusedEnrollment) -> Status {
    Status::failed_precondition(chain_text(error))
}

/// Sends progress to the caller. If the caller is slow and its queue is full, the event is lost.
fn send_progress(sender: &Sender<Result<proto::ApplyEvent, Status>>, event: Event) {
    let _ = sender.try_send(Ok(proto::ApplyEvent { event: Some(event) }));
}

/// Waits until the reconciler has looked after request `asked` and has done what can be done.
async fn finished(
    mut status: tokio::sync::watch::Receiver<super::reconciler_channel::ReconcileStatus>,
    asked: u64,
    before: u64,
) -> proto::Finished {
    match status.wait_for(|status| status.answered >= asked).await {
        Ok(status) => proto::Finished {
            effects: status.effects.saturating_sub(before),
            failures: status.failures.clone(),
            held: status.postponed.clone(),
        },
        Err(_) => proto::Finished { effects: 0, failures: vec!["the agent is stopping".to_owned()], held: Vec::new() },
    }
}

/// Returns the status for a failed observation. A runtime that does not respond has a code of its own.
fn unseen(error: &ObserveError) -> Status {
    let why = chain_text(error);
    if error.runtime_is_silent() { Status::deadline_exceeded(why) } else { Status::unavailable(why) }
}

fn refused(error: &AcceptError) -> Status {
    let why = chain_text(error);
    tracing::warn!(why, "refused a config");
    match error {
        AcceptError::Refused(keelway_machine::refusal::ConfigRefusal::Invalid { .. }) => Status::invalid_argument(why),
        AcceptError::Refused(_) => Status::failed_precondition(why),
        AcceptError::Keep(FilesError::Files(
            MachineFileError::Write { source, .. } | MachineFileError::Make { source, .. },
        )) if matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) => {
            Status::resource_exhausted(why)
        }
        AcceptError::Keep(_) => Status::internal(why),
    }
}
