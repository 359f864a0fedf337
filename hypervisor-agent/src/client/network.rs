//! The way to an agent on a network.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use keelway_api::{hypervisor::agent_name, name::HypervisorName};
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use tokio::{io::BufReader, net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::HypervisorAgentClient;
use crate::{connection::MachineConnection, report::chain_text};

/// How long a port may take to be connected to.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection may be silent before the agent is asked whether it is there, and then until it answers.
const SILENCE: Duration = Duration::from_secs(10);
/// What is read at once of a connection with a stream, in bytes. TLS asks for 4 KiB at a time.
const PIECE: usize = 1 << 16;
/// What is on its way to the driver and not read yet, in bytes: of one answer, and of a connection.
const WINDOWS: [u32; 2] = [1 << 18, 1 << 20];

/// A connection to a port at `HOST:PORT`, whoever listens there.
async fn reach(address: &str) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT, TcpStream::connect(address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The way to somebody who must prove to be who is meant, mostly an agent, for whoever `identity` shows. Nothing is dialled yet.
#[derive(Debug, Clone)]
pub struct DialTarget {
    to: DialMethod,
    name: ServerName<'static>,
    identity: Arc<keelway_tls::TlsClient>,
}

/// How there is a connection.
#[derive(Debug, Clone)]
enum DialMethod {
    /// `HOST:PORT`.
    Address(String),
    /// Another agent dials.
    Through(HypervisorAgentClient, SocketAddr),
    /// It waits at another agent to be called.
    Called(HypervisorAgentClient, HypervisorName),
}

impl DialTarget {
    /// To the agent of a machine that listens at `HOST:PORT`.
    pub fn to_machine(
        machine: &HypervisorName,
        address: &str,
        identity: Arc<keelway_tls::TlsClient>,
    ) -> Result<Self, InvalidDnsNameError> {
        Ok(Self::to(address, ServerName::try_from(agent_name(machine))?, identity))
    }

    /// To the agent of a machine that another one's reaches: at an address, or, where there is none, because it waits there.
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

    /// To whoever listens at `HOST:PORT` and proves to be `name`.
    #[must_use]
    pub fn to(address: &str, name: ServerName<'static>, identity: Arc<keelway_tls::TlsClient>) -> Self {
        Self { to: DialMethod::Address(address.to_owned()), name, identity }
    }

    /// A connection for a stream of the runtime's.
    pub async fn stream(&self) -> io::Result<TlsStream<MachineConnection>> {
        let connection = self.connection().await?;
        self.secured(MachineConnection::new(BufReader::with_capacity(PIECE, connection))).await
    }

    async fn secured(&self, connection: MachineConnection) -> io::Result<TlsStream<MachineConnection>> {
        self.identity.connect(self.name.clone(), connection).await.map_err(|error| full_error(&error))
    }

    /// A connection to whoever is there.
    pub async fn connection(&self) -> io::Result<MachineConnection> {
        match &self.to {
            DialMethod::Address(address) => reach(address).await.map(MachineConnection::from),
            DialMethod::Through(via, address) => via.dial(*address, CONNECT).await.map_err(|error| full_error(&error)),
            DialMethod::Called(via, machine) => via.call(machine, CONNECT).await.map_err(|error| full_error(&error)),
        }
    }

    /// A channel for calls of agent and runtime ([`keelway_cri::Runtime::on_channel`]). What broke is dialled again.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel_that_is_tried(SILENCE)
    }

    /// The same, tried after so long a silence, and given up after as long again.
    pub(crate) fn channel_that_is_tried(&self, silence: Duration) -> Channel {
        let way = self.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let way = way.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(way.secured(way.connection().await?).await?)) }
        });
        let [answer, connection] = WINDOWS;
        // The name stands for nothing, and TLS is the connector's.
        let endpoint = Endpoint::from_static("http://hypervisor")
            .initial_stream_window_size(answer)
            .initial_connection_window_size(connection)
            .http2_keep_alive_interval(silence)
            .keep_alive_timeout(silence)
            .keep_alive_while_idle(true);
        endpoint.connect_with_connector_lazy(connector)
    }
}

/// An error with its causes: calls over the connection tell of the last one only.
fn full_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    io::Error::other(chain_text(error))
}

/// The channel to a machine's agent at `HOST:PORT`.
pub fn channel(
    address: &str,
    machine: &HypervisorName,
    identity: Arc<keelway_tls::TlsClient>,
) -> Result<Channel, InvalidDnsNameError> {
    Ok(DialTarget::to_machine(machine, address, identity)?.channel())
}
