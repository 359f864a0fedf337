//! The agent on a network: it serves the driver of its installation, over mutual TLS, and agents that wait here for calls.
//!
//! The agent listens on a port, or waits at the ports of other agents. A connection carries gRPC calls over HTTP/2, or one stream of the runtime over
//! HTTP/1.1.
//!
//! A peer that has not authenticated yet is a stranger, and has a few seconds to do so. Strangers have connection slots of their own, so they cannot
//! use up those of the driver. If all slots are in use, a new stranger replaces the oldest one. A peer that connects repeatedly or sends nothing
//! therefore blocks no other client.

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

use keelway_base::bounded_tasks::BoundedTasks;
use keelway_cri::proxy::{connection::MachineConnection, streams::PendingStreams};
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

use crate::enrollment::{EnrollingError, IdentityFolder};
use calls::Calls;
use connection_handler::ConnectionHandler;
use conversation::Conversation;
pub(crate) use tls_identity::AgentTlsIdentity;

/// The common name in the certificate of a driver. The certificate's organization is the installation that it drives.
pub const DRIVER: &str = "keelway:driver";
/// The protocols in ALPN. gRPC clients in other languages require them.
const SPOKEN: [&str; 2] = ["h2", "http/1.1"];

/// The backlog of the listening socket. With a shorter one, a burst of connections can drop one of the driver's, which then retries after a second.
const WAITING: u32 = 4096;
/// How long a connection can be silent before the kernel sends keepalive probes, and then how long the peer may take to respond.
const SILENCE: Duration = Duration::from_secs(20);
/// The number of keepalive probes.
const ASKED: u32 = 4;

/// The agent cannot be on the network.
#[derive(Debug, thiserror::Error)]
pub enum AgentNetworkError {
    /// The port cannot be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The error of the socket.
        #[source]
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error("cannot use the agent's certificates")]
    Tls(#[from] TlsError),
    /// The identity of the agent cannot be read.
    #[error("cannot read the agent's identity in {}", path.display())]
    Folder {
        /// The directory of the identity.
        path: PathBuf,
        /// The error of the read.
        #[source]
        source: io::Error,
    },
    /// The agent has no identity, and no token to get one.
    #[error(
        "the agent has no identity in {}: set --enroll to a new token from `keelway hypervisor enroll`, or set --tls-certificate",
        .0.display()
    )]
    Nobody(PathBuf),
    /// The agent cannot wait for enrolment.
    #[error(transparent)]
    Enrolling(#[from] EnrollingError),
}

/// Limits on connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// The largest number of connections of strangers.
    pub strangers: usize,
    /// The largest number of connections of authenticated drivers.
    pub conversations: usize,
    /// How long a connection can be silent before the agent checks whether the peer is there, and then how long the peer may take to respond.
    pub silence: Duration,
}

impl Default for ConnectionLimits {
    /// A driver has one or two connections, one for each stream, and one for each machine that it reaches through this agent.
    fn default() -> Self {
        Self { strangers: 256, conversations: 512, silence: Duration::from_secs(20) }
    }
}

/// The agent's side of the network: where it accepts connections, and its identity.
#[derive(Debug)]
pub struct AgentNetwork {
    listener: Option<TcpListener>,
    /// The addresses of other agents at which this agent waits for calls.
    at: Vec<SocketAddr>,
    standing: Arc<AgentTlsIdentity>,
    bounds: ConnectionLimits,
}

/// A connection of a stranger.
struct StrangerConnection {
    stream: MachineConnection,
    from: SocketAddr,
    /// The URL at which this peer finds streams.
    at: String,
}

impl AgentNetwork {
    /// Returns a network with the identity in these files. It does not listen yet.
    pub fn of_files(files: TlsFiles, bounds: ConnectionLimits) -> Result<Self, AgentNetworkError> {
        Ok(Self::of(AgentTlsIdentity::of_files(files)?, bounds))
    }

    /// Returns a network with the identity of an earlier enrolment. With an unused token, the agent waits for enrolment. It does not listen yet.
    pub fn enrolled(
        folder: IdentityFolder,
        token: Option<EnrollmentToken>,
        bounds: ConnectionLimits,
    ) -> Result<Self, AgentNetworkError> {
        Ok(Self::of(AgentTlsIdentity::of_folder(folder, token)?, bounds))
    }

    /// Returns a network whose first certificate arrives at the agent's socket. It does not listen yet.
    pub fn awaiting_certificate(folder: IdentityFolder, bounds: ConnectionLimits) -> Result<Self, AgentNetworkError> {
        Ok(Self::of(AgentTlsIdentity::awaited(folder)?, bounds))
    }

    fn of(standing: AgentTlsIdentity, bounds: ConnectionLimits) -> Self {
        Self { listener: None, at: Vec::new(), standing: Arc::new(standing), bounds }
    }

    /// Listens on an address.
    pub fn listening_on(self, address: SocketAddr) -> Result<Self, AgentNetworkError> {
        let listener = listen(address).map_err(|source| AgentNetworkError::Listen { address, source })?;
        Ok(Self { listener: Some(listener), ..self })
    }

    /// Waits at the agents that listen on these addresses, once this agent has a certificate.
    #[must_use]
    pub fn waiting_at(self, addresses: Vec<SocketAddr>) -> Self {
        Self { at: addresses, ..self }
    }

    /// Returns the identity of the agent.
    pub(super) fn tls_identity(&self) -> Arc<AgentTlsIdentity> {
        Arc::clone(&self.standing)
    }

    /// Returns the address that the agent listens on, or the unspecified address if it does not listen.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let nowhere = Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        self.listener.as_ref().map_or(nowhere, TcpListener::local_addr)
    }

    /// Accepts connections and serves authenticated peers until the agent stops.
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
    // A restarted agent can bind its port at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// Returns the next connection to the port. Never returns if there is no port.
async fn accept(listener: Option<&TcpListener>) -> StrangerConnection {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        if let Ok((stream, from)) = listener.accept().await {
            return StrangerConnection::of(stream, from);
        }
        // Only a shortage of descriptors or memory leads here. It may pass in a moment.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl StrangerConnection {
    fn of(stream: TcpStream, from: SocketAddr) -> Self {
        // A failure only costs some milliseconds.
        let _ = stream.set_nodelay(true);
        // HTTP/2 has keepalive of its own. If this fails, a stream to a peer that lost power stays open.
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, SILENCE);
        let _ = sockopt::set_tcp_keepintvl(&stream, SILENCE / ASKED);
        let _ = sockopt::set_tcp_keepcnt(&stream, ASKED);
        let at = stream.local_addr().map_or_else(|_| String::new(), |local| format!("https://{local}"));
        Self { stream: stream.into(), from, at }
    }
}
