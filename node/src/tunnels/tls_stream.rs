//! WireGuard over TLS, as a worker uses it while its network lets no UDP through: a local socket, to which the tunnel sends, and a connection to the
//! gateway by way of the ingress beside it.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use keelway_base::error_chain::ErrorChain;
use keelway_http_proxy::HttpProxies;
use keelway_tls::component::{AgentTlsError, client_from_pem};
use keelway_vpn::{
    datagram_stream::{DatagramStreamError, PROTOCOL, carry},
    liveness::keep_alive,
};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    net::{TcpStream, UdpSocket},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::task::AbortOnDropHandle;

/// The DNS name in the certificates of gateways.
pub(crate) const GATEWAY_NAME: &str = "gateway.keelway";
/// How long a connection may take, with its handshake.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the gateway may send nothing. It sends a keepalive every 15 s.
const SILENCE: Duration = Duration::from_secs(60);
/// The pause before a lost connection is opened again.
const AGAIN: Duration = Duration::from_secs(1);

/// A connection does not carry datagrams, or does not any more.
#[derive(Debug, thiserror::Error)]
enum TlsStreamError {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("no connection within {} s", CONNECT.as_secs())]
    TimedOut,
    #[error("the other side does not speak {PROTOCOL}: its gateway is of an earlier release")]
    Protocol,
    #[error(transparent)]
    Carried(#[from] DatagramStreamError),
}

/// How such connections are made.
#[derive(Debug, Clone)]
pub(super) struct TlsTransport {
    config: Arc<ClientConfig>,
    proxies: HttpProxies,
}

impl TlsTransport {
    /// Verifies gateways with these authorities, which are PEM.
    pub(super) fn new(authorities: &str, proxies: HttpProxies) -> Result<Self, AgentTlsError> {
        let mut config = client_from_pem(authorities.as_bytes(), None)?;
        config.alpn_protocols = vec![PROTOCOL.as_bytes().to_vec()];
        Ok(Self { config: Arc::new(config), proxies })
    }

    async fn connect(&self, gateway: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let stream = self.proxies.connect(gateway).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream);
        let name = ServerName::try_from(GATEWAY_NAME).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }
}

/// A local socket whose datagrams reach a gateway over TLS, until it is dropped.
pub(super) struct TunnelTlsStream {
    gateway: SocketAddr,
    local: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl TunnelTlsStream {
    /// Opens the local socket. The connection follows with the first datagram, and again after each loss.
    pub(super) fn open(gateway: SocketAddr, transport: TlsTransport) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        let local = socket.local_addr()?;
        let task = AbortOnDropHandle::new(tokio::spawn(relay(socket, gateway, transport)));
        Ok(Self { gateway, local, _task: task })
    }

    /// Returns the endpoint of the gateway.
    pub(super) fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// Returns the endpoint to which the tunnel sends.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }
}

async fn relay(socket: UdpSocket, gateway: SocketAddr, transport: TlsTransport) {
    // The first sender is WireGuard. Datagrams of other local programs are not accepted afterwards.
    let connected = async {
        let (_, wireguard) = socket.peek_from(&mut [0; 1]).await?;
        socket.connect(wireguard).await
    };
    if let Err(error) = connected.await {
        return tracing::error!(%gateway, %error, "cannot use a local socket for a tunnel over TLS");
    }
    loop {
        let ended = match connect_and_carry(&socket, gateway, &transport).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        tracing::debug!(%gateway, "a tunnel over TLS is interrupted: {}", ErrorChain(&ended));
        sleep(AGAIN).await;
        if socket.readable().await.is_err() {
            return;
        }
    }
}

async fn connect_and_carry(
    socket: &UdpSocket,
    gateway: SocketAddr,
    transport: &TlsTransport,
) -> Result<Infallible, TlsStreamError> {
    let connected = timeout(CONNECT, transport.connect(gateway)).await.map_err(|_| TlsStreamError::TimedOut)?;
    let stream = connected.map_err(TlsStreamError::Connect)?;
    if stream.get_ref().1.alpn_protocol() != Some(PROTOCOL.as_bytes()) {
        return Err(TlsStreamError::Protocol);
    }
    tracing::info!(%gateway, "a tunnel uses TLS");
    Ok(carry(stream, socket, SILENCE, |_| true, |_| {}).await?)
}
