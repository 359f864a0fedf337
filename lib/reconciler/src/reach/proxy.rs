//! Serves a machine's runtime on a socket of this host, for tools that speak CRI. Streams are served on a port of the loopback.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use keelway_base::root_socket::RootSocket;
use keelway_cri::proxy::{follow, passthrough::StreamsUrl};
use keelway_cri::{
    CriRuntime,
    proxy::{
        connection::MachineConnection,
        fanout::Fanout,
        passthrough::CriPassthrough,
        streams::{self, PendingStreams, address_of},
    },
};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, service::Routes, transport::Server};
use tower::util::MapRequestLayer;

use super::{DIAL, ReachMethod, ReachedMachine};

/// The largest number of connections to that port at a time, including those of other programs on this host.
const STREAMS: usize = 256;

/// The proxy could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The port for streams cannot be opened.
    #[error("cannot listen on a loopback port")]
    Listen(#[source] io::Error),
    /// The socket cannot be served.
    #[error("cannot serve the runtime's API")]
    Serve(#[source] tonic::transport::Error),
}

impl ReachedMachine {
    /// Serves the machine's runtime on a socket until `stop` is cancelled.
    pub async fn proxy(self, socket: RootSocket, stop: CancellationToken) -> Result<(), ProxyError> {
        let loopback = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(ProxyError::Listen)?;
        let address = loopback.local_addr().map_err(ProxyError::Listen)?;
        let runtime = self.runtime.channel();
        // Clients of the proxy may stop reading, too. Each subscription of its own would then block part of the one connection to the agent.
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
            // The agent relays the runtime's streams on its own port, under the same paths.
            ReachMethod::Agent(agent) => PendingStreams::new(move |_| {
                let way = agent.1.clone();
                async move { way.stream().await.map(MachineConnection::new) }
            }),
        }
    }
}

/// Follows the runtime's events, if they are distributed here.
async fn follow(runtime: CriRuntime, events: Option<Arc<Fanout>>) {
    match events {
        Some(events) => follow::follow(runtime, events, Arc::default()).await,
        None => std::future::pending().await,
    }
}

/// Sets the port as the address of streams for all callers on the socket.
fn caller(address: SocketAddr) -> impl Fn(http::Request<Body>) -> http::Request<Body> + Clone {
    let url = StreamsUrl(format!("http://{address}"));
    move |mut request| {
        request.extensions_mut().insert(url.clone());
        request
    }
}

/// Serves streams on the port. A path leads to a stream only until its first use, and only the caller knows it.
async fn relay(loopback: TcpListener, streams: Arc<PendingStreams>) {
    let places = Arc::new(Semaphore::new(STREAMS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((stream, _)) = loopback.accept().await else {
            // Only a shortage of descriptors or memory leads here. It may pass in a moment.
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
