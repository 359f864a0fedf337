//! The agent on a network: for the driver of its installation, over mutual TLS, and for agents that wait here to be called.
//!
//! It has a port, or waits itself at the port of others. On each connection there are calls of gRPC, by HTTP/2, or one stream of
//! the runtime's, by HTTP/1.1.
//!
//! Who has not shown who it is yet is a stranger, and has a few seconds for it. Strangers take nothing from the driver: they have
//! places of their own, and where all of these are taken, whoever came first gives way to whoever comes. So one who connects
//! again and again, or says nothing, keeps nobody out.

mod bounded_tasks;
mod calls;
mod connection_handler;
mod conversation;
mod gate;
mod tls_identity;
mod waiting;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use keelway_pki::EnrollmentToken;
use keelway_tls::{TlsError, TlsFiles};
use rustix::net::sockopt;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    connection::MachineConnection,
    enrollment::{EnrollingError, IdentityFolder},
    streams::PendingStreams,
};
use bounded_tasks::BoundedTasks;
use calls::Calls;
use connection_handler::ConnectionHandler;
use conversation::Conversation;
pub(crate) use tls_identity::AgentTlsIdentity;

/// The common name of whoever drives the machines of an installation, which is the organization of its certificate.
pub const DRIVER: &str = "keelway:driver";
/// What is spoken, in the words of ALPN: clients of gRPC in other languages ask for it.
const SPOKEN: [&str; 2] = ["h2", "http/1.1"];

/// Connections that wait for the agent: with fewer, one of the driver's is lost in a burst of others and comes a second later.
const WAITING: u32 = 4096;
/// How long a connection may say nothing before the kernel asks whether its other side is there, and then until it answers.
const SILENCE: Duration = Duration::from_secs(20);
/// How often it asks.
const ASKED: u32 = 4;

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum AgentNetworkError {
    /// It cannot be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nobody can be shown who the agent is, or be known.
    #[error("cannot use the agent's certificates")]
    Tls(#[from] TlsError),
    /// What it was given cannot be read.
    #[error("cannot read the agent's identity in {}", path.display())]
    Folder {
        /// Where it is kept.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was given none, and has no way to one.
    #[error(
        "the agent has no identity in {}: give --enroll with a new token of `keelway hypervisor enroll`, or --tls-certificate",
        .0.display()
    )]
    Nobody(PathBuf),
    /// It cannot be enrolled.
    #[error(transparent)]
    Enrolling(#[from] EnrollingError),
}

/// How much of the agent others can take.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Connections of strangers.
    pub strangers: usize,
    /// Connections of who may speak.
    pub conversations: usize,
    /// How long one of them may be silent before it is asked whether it is there, and then until it answers.
    pub silence: Duration,
}

impl Default for ConnectionLimits {
    /// A driver has a connection or two, one for each stream, and one for each machine that is reached through this one.
    fn default() -> Self {
        Self { strangers: 256, conversations: 512, silence: Duration::from_secs(20) }
    }
}

/// Where connections of the driver come from.
#[derive(Debug)]
pub struct AgentNetwork {
    listener: Option<TcpListener>,
    /// Other agents at which it waits to be called.
    at: Vec<SocketAddr>,
    standing: Arc<AgentTlsIdentity>,
    bounds: ConnectionLimits,
}

/// A connection of a stranger.
struct StrangerConnection {
    stream: MachineConnection,
    from: SocketAddr,
    /// Where who speaks on it finds streams.
    at: String,
}

impl AgentNetwork {
    /// As whom the files say. It listens nowhere yet.
    pub fn of_files(files: TlsFiles, bounds: ConnectionLimits) -> Result<Self, AgentNetworkError> {
        Ok(Self::of(AgentTlsIdentity::of_files(files)?, bounds))
    }

    /// As whom the agent was enrolled; with a token that was not used yet, it waits to be enrolled. It listens nowhere yet.
    pub fn enrolled(
        folder: IdentityFolder,
        token: Option<EnrollmentToken>,
        bounds: ConnectionLimits,
    ) -> Result<Self, AgentNetworkError> {
        Ok(Self::of(AgentTlsIdentity::of_folder(folder, token)?, bounds))
    }

    fn of(standing: AgentTlsIdentity, bounds: ConnectionLimits) -> Self {
        Self { listener: None, at: Vec::new(), standing: Arc::new(standing), bounds }
    }

    /// Listens on an address.
    pub fn listening_on(self, address: SocketAddr) -> Result<Self, AgentNetworkError> {
        let listener = listen(address).map_err(|source| AgentNetworkError::Listen { address, source })?;
        Ok(Self { listener: Some(listener), ..self })
    }

    /// Waits at the agents that listen on these addresses, once it has a certificate to show there.
    #[must_use]
    pub fn waiting_at(self, addresses: Vec<SocketAddr>) -> Self {
        Self { at: addresses, ..self }
    }

    /// As whom the agent answers.
    pub(super) fn tls_identity(&self) -> Arc<AgentTlsIdentity> {
        Arc::clone(&self.standing)
    }

    /// Where it listens; an address of no machine where it does not.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let nowhere = Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        self.listener.as_ref().map_or(nowhere, TcpListener::local_addr)
    }

    /// Answers those who may speak, until they may no more or the agent stops.
    pub(super) async fn serve(self, routes: Routes, streams: Arc<PendingStreams>, stop: CancellationToken) {
        let Self { listener, at, standing, bounds } = self;
        let calls = Calls::new(routes, bounds.silence);
        let reception = Arc::new(ConnectionHandler::new(Arc::clone(&standing), bounds, (calls, streams), stop));
        let (came, mut called) = mpsc::channel(1);
        let mut waiting = JoinSet::new();
        for address in at {
            waiting.spawn(waiting::wait_at(address, Arc::clone(&standing), came.clone()));
        }
        let mut strangers = BoundedTasks::new(bounds.strangers);
        loop {
            let came = tokio::select! {
                came = accept(listener.as_ref()) => came,
                Some(came) = called.recv() => came,
            };
            strangers.make_room().await;
            strangers.take(Arc::clone(&reception).handle(came));
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // An agent that begins anew has its port at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// The next connection to the port, where there is one.
async fn accept(listener: Option<&TcpListener>) -> StrangerConnection {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        if let Ok((stream, from)) = listener.accept().await {
            return StrangerConnection::of(stream, from);
        }
        // Only a shortage of descriptors or memory comes here, and that takes a moment to pass.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl StrangerConnection {
    fn of(stream: TcpStream, from: SocketAddr) -> Self {
        // What is not set costs some milliseconds.
        let _ = stream.set_nodelay(true);
        // HTTP/2 asks by itself. What is not set keeps a stream whose other side lost its power.
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, SILENCE);
        let _ = sockopt::set_tcp_keepintvl(&stream, SILENCE / ASKED);
        let _ = sockopt::set_tcp_keepcnt(&stream, ASKED);
        let at = stream.local_addr().map_or_else(|_| String::new(), |local| format!("https://{local}"));
        Self { stream: stream.into(), from, at }
    }
}
