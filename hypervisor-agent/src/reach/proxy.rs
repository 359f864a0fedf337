//! A machine's runtime on a socket of this machine, for tools that speak CRI: its calls, and its streams by a port of the loopback.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use keelway_cri::CriRuntime;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, service::Routes, transport::Server};
use tower::util::MapRequestLayer;

use super::{DIAL, ReachMethod, ReachedMachine, bare};
use crate::{
    agent::{self, AgentUnixSocket},
    caller::{Caller, CallerRole},
    connection::MachineConnection,
    cri_passthrough::CriPassthrough,
    fanout::Fanout,
    streams::{self, PendingStreams, address_of},
};

/// Streams at a time, and connections of whoever else is on this machine.
const STREAMS: usize = 256;

/// Why a machine's runtime is not on a socket of this one.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// There is no port for streams.
    #[error("cannot listen on a port of the loopback")]
    Listen(#[source] io::Error),
    /// Nobody can be answered on the socket.
    #[error("cannot serve the runtime's API")]
    Serve(#[source] tonic::transport::Error),
}

impl ReachedMachine {
    /// Answers on a socket as the machine's runtime does, until it is told to stop.
    pub async fn proxy(self, socket: AgentUnixSocket, stop: CancellationToken) -> Result<(), ProxyError> {
        let loopback = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(ProxyError::Listen)?;
        let address = loopback.local_addr().map_err(ProxyError::Listen)?;
        let runtime = self.runtime.channel();
        // Others may stop reading here, too: each of them would hold a part of the one connection.
        let events = self.has_agent().then(Arc::<Fanout>::default);
        let following = follow(self.runtime.clone(), events.clone());
        let streams = Arc::new(self.streams());
        let routes = Routes::new(CriPassthrough::<false>::new(runtime.clone(), Arc::clone(&streams), events))
            .add_service(CriPassthrough::<true>::new(runtime, Arc::clone(&streams), None));
        let mut http = Server::builder().layer(MapRequestLayer::new(caller(address)));
        tokio::select! {
            served = http.add_routes(routes).serve_with_incoming(socket.connections()) => served.map_err(ProxyError::Serve),
            () = relay(loopback, streams) => Ok(()),
            () = following => Ok(()),
            () = stop.cancelled() => Ok(()),
        }
    }

    fn has_agent(&self) -> bool {
        match &self.by {
            ReachMethod::Process { is_agent, .. } => *is_agent,
            ReachMethod::Agent(_) => true,
            ReachMethod::Helper(_) => false,
        }
    }

    fn streams(self) -> PendingStreams {
        match self.by {
            ReachMethod::Process { access, .. } => {
                let access = Arc::new(access);
                PendingStreams::new(move |url| {
                    let (access, address) = (Arc::clone(&access), address_of(url));
                    async move { access.dial(address?, DIAL).await.map(MachineConnection::from).map_err(io::Error::other) }
                })
            }
            // It relays the runtime's streams on its own port, under the same paths.
            ReachMethod::Agent(agent) => PendingStreams::new(move |_| {
                let way = agent.1.clone();
                async move { way.stream().await.map(MachineConnection::new) }
            }),
            ReachMethod::Helper(_) => PendingStreams::new(|url| {
                let address = address_of(url);
                async move { bare::dial(address?, DIAL).await.map_err(io::Error::other) }
            }),
        }
    }
}

/// Tells of the runtime's events, where somebody is to be told.
async fn follow(runtime: CriRuntime, events: Option<Arc<Fanout>>) {
    match events {
        Some(events) => agent::follow(runtime, events, Arc::default()).await,
        None => std::future::pending().await,
    }
}

/// Whoever asks on the socket finds streams on that port.
fn caller(address: SocketAddr) -> impl Fn(http::Request<Body>) -> http::Request<Body> + Clone {
    let caller = Caller { role: CallerRole::Driver, at: format!("http://{address}") };
    move |mut request| {
        request.extensions_mut().insert(caller.clone());
        request
    }
}

/// A path leads to a stream only as long as nobody came for it, and nobody else knows it.
async fn relay(loopback: TcpListener, streams: Arc<PendingStreams>) {
    let places = Arc::new(Semaphore::new(STREAMS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((stream, _)) = loopback.accept().await else {
            // Only a shortage of descriptors or memory comes here, and that takes a moment to pass.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let streams = Arc::clone(&streams);
        tokio::spawn(async move {
            streams::serve(stream, streams, true).await;
            drop(place);
        });
    }
}
