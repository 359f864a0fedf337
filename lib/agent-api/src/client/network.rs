//! Connections to agents on a network.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use keelway_api::{hypervisor::agent_name, name::HypervisorName};
use keelway_base::error_chain::chain_text;
use keelway_cri::proxy::connection::MachineConnection;
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use tokio::{io::BufReader, net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::HypervisorAgentClient;

/// How long connecting to a port may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection can be silent before it is checked, and then how long the agent may take to respond.
const SILENCE: Duration = Duration::from_secs(10);
/// How many bytes of a stream are read from the connection at once. TLS reads 4 KiB at a time.
const PIECE: usize = 1 << 16;
/// Flow control windows of a response and of a connection, in bytes.
const WINDOWS: [u32; 2] = [1 << 18, 1 << 20];

/// Connects to `HOST:PORT`.
async fn reach(address: &str) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT, TcpStream::connect(address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A peer to connect to, usually an agent. The peer must prove that it has the given name; the caller shows the certificate of `identity`. No
/// connection is open yet.
#[derive(Debug, Clone)]
pub struct DialTarget {
    to: DialMethod,
    name: ServerName<'static>,
    identity: Arc<keelway_tls::TlsClient>,
}

/// How the connection is made.
#[derive(Debug, Clone)]
enum DialMethod {
    /// Directly to `HOST:PORT`.
    Address(String),
    /// Another agent dials the address.
    Through(HypervisorAgentClient, SocketAddr),
    /// The machine's agent waits for calls at another agent.
    Called(HypervisorAgentClient, HypervisorName),
}

impl DialTarget {
    /// Returns the target for the agent of a machine that listens at `HOST:PORT`.
    pub fn to_machine(
        machine: &HypervisorName,
        address: &str,
        identity: Arc<keelway_tls::TlsClient>,
    ) -> Result<Self, InvalidDnsNameError> {
        Ok(Self::to(address, ServerName::try_from(agent_name(machine))?, identity))
    }

    /// Returns the target for the agent of a machine that another agent can reach. Without an address, the machine's agent waits for calls there.
    pub fn through(
        via: HypervisorAgentClient,
        machine: &HypervisorName,
        address: Option<SocketAddr>,
        identity: Arc<keelway_tls::TlsClient>,
    ) -> Result<Self, InvalidDnsNameError> {
        let to = match address {
            Some(address) => DialMethod::Through(via, address),
            None => DialMethod::Called(via, machine.clone()),
        };
        Ok(Self { to, name: ServerName::try_from(agent_name(machine))?, identity })
    }

    /// Returns the target for a peer that listens at `HOST:PORT` and proves that its name is `name`.
    #[must_use]
    pub fn to(address: &str, name: ServerName<'static>, identity: Arc<keelway_tls::TlsClient>) -> Self {
        Self { to: DialMethod::Address(address.to_owned()), name, identity }
    }

    /// Opens a TLS connection for a stream of the runtime.
    pub async fn stream(&self) -> io::Result<TlsStream<MachineConnection>> {
        let connection = self.connection().await?;
        self.secured(MachineConnection::new(BufReader::with_capacity(PIECE, connection))).await
    }

    async fn secured(&self, connection: MachineConnection) -> io::Result<TlsStream<MachineConnection>> {
        self.identity.connect(self.name.clone(), connection).await.map_err(|error| full_error(&error))
    }

    /// Opens a connection without TLS.
    pub async fn connection(&self) -> io::Result<MachineConnection> {
        match &self.to {
            DialMethod::Address(address) => reach(address).await.map(MachineConnection::from),
            DialMethod::Through(via, address) => via.dial(*address, CONNECT).await.map_err(|error| full_error(&error)),
            DialMethod::Called(via, machine) => via.call(machine, CONNECT).await.map_err(|error| full_error(&error)),
        }
    }

    /// Returns a channel for calls of the agent and of the runtime ([`keelway_cri::CriRuntime::on_channel`]). It reconnects if the connection breaks.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel_that_is_tried(SILENCE)
    }

    /// Returns a channel that checks the connection after this silence, and closes it after the same time without a response.
    pub fn channel_that_is_tried(&self, silence: Duration) -> Channel {
        let way = self.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let way = way.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(way.secured(way.connection().await?).await?)) }
        });
        let [answer, connection] = WINDOWS;
        // The connector ignores the name, and does the TLS handshake.
        let endpoint = Endpoint::from_static("http://hypervisor")
            .initial_stream_window_size(answer)
            .initial_connection_window_size(connection)
            .http2_keep_alive_interval(silence)
            .keep_alive_timeout(silence)
            .keep_alive_while_idle(true);
        endpoint.connect_with_connector_lazy(connector)
    }
}

/// Returns an error whose text contains all causes. Calls over the connection report only the last one.
fn full_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    io::Error::other(chain_text(error))
}

/// Returns the channel to a machine's agent at `HOST:PORT`.
pub fn channel(
    address: &str,
    machine: &HypervisorName,
    identity: Arc<keelway_tls::TlsClient>,
) -> Result<Channel, InvalidDnsNameError> {
    Ok(DialTarget::to_machine(machine, address, identity)?.channel())
}
