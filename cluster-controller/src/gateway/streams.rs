//! WireGuard over TLS, for workers whose network lets no UDP through, and renewals of expired certificates.
//!
//! An ingress forwards connections with the protocol [`PROTOCOL`] to this listener. Each carries the datagrams of one worker to the gateway's own UDP
//! port, so that the relay treats it like any other endpoint. WireGuard authenticates the worker: a stream that carries no handshake of a peer is
//! closed soon, and gives way to others first.

mod handshake_pace;
mod stream_registry;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use keelway_api::worker::RENEWAL_PROTOCOL;
use keelway_base::error_chain::ErrorChain;
use keelway_tls::{HandshakeError, OpenTlsServer, TlsError, TlsFiles};
use keelway_vpn::datagram_stream::{DatagramStreamError, PROTOCOL, carry};
use keelway_vpn::liveness::keep_alive;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{Instant, sleep};

use self::handshake_pace::HandshakePace;
use self::stream_registry::StreamEntry;
pub(super) use self::stream_registry::StreamRegistry;
use super::renewals::RenewalServer;

/// How long a stream may carry nothing from its worker. Workers send a keepalive every 15 s.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a stream may take until the gateway has responded to a handshake on it.
const UNMET: Duration = Duration::from_secs(20);
/// The protocols of streams: the datagrams of a tunnel, and the renewal of a certificate.
const PROTOCOLS: [&str; 2] = [PROTOCOL, RENEWAL_PROTOCOL];
/// The types of messages that the gateway sends to peers only: an initiation, a response, and data.
const TO_PEERS: [u8; 3] = [1, 2, 4];
/// The pause before accepting is retried after an error.
const AGAIN: Duration = Duration::from_millis(100);

/// The listener for workers whose network lets no UDP through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamListenerConfig {
    /// The address to listen on: a loopback address, because only the ingress beside the gateway connects to it.
    pub listen: SocketAddr,
    /// The gateway's certificate and key, which workers verify with the cluster's authorities.
    pub tls: TlsFiles,
}

/// A connection did not carry datagrams, or does not any more.
#[derive(Debug, thiserror::Error)]
enum GatewayStreamError {
    #[error("it gives way to a newer stream, because it carried no handshake of a peer")]
    Displaced,
    #[error("it carried no handshake of a peer within {} s", UNMET.as_secs())]
    Unmet,
    #[error(transparent)]
    Tls(#[from] HandshakeError),
    #[error("a worker got a response to its request for a certificate")]
    Renewed,
    #[error("a worker did not get a response to its request for a certificate")]
    Renewal(#[source] io::Error),
    #[error("cannot open a local socket")]
    Socket(#[source] io::Error),
    #[error(transparent)]
    Carried(#[from] DatagramStreamError),
}

/// Accepts streams and connects each to the relay.
pub(super) struct StreamListener {
    server: OpenTlsServer,
    /// The gateway's own UDP port on loopback.
    relay: SocketAddr,
    registry: Arc<StreamRegistry>,
    renewals: RenewalServer,
}

impl StreamListener {
    /// Creates a listener for the relay with this port. It fails if the certificate cannot be used.
    pub(super) fn new(
        tls: TlsFiles,
        relay: u16,
        registry: Arc<StreamRegistry>,
        kubeconfig: Option<PathBuf>,
    ) -> Result<Arc<Self>, TlsError> {
        let renewals = RenewalServer::new(kubeconfig, tls.authority_file.clone());
        let relay = SocketAddr::from((Ipv4Addr::LOCALHOST, relay));
        Ok(Arc::new(Self { server: OpenTlsServer::new(tls, &PROTOCOLS)?, relay, registry, renewals }))
    }

    /// Accepts streams while it is polled.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // This error only means a shortage of file descriptors or memory. It takes a moment to end.
                sleep(AGAIN).await;
                continue;
            };
            let Some(entry) = self.registry.admit() else {
                tracing::debug!("closing a stream: too many are open, and all of them carry peers");
                continue;
            };
            let listener = Arc::clone(&self);
            tokio::spawn(async move {
                let ended = tokio::select! {
                    ended = listener.serve_stream(stream, &entry) => ended,
                    () = entry.displaced() => GatewayStreamError::Displaced,
                };
                tracing::debug!("a stream ended: {}", ErrorChain(&ended));
            });
        }
    }

    async fn serve_stream(&self, stream: TcpStream, entry: &StreamEntry) -> GatewayStreamError {
        let ended = async {
            let _ = stream.set_nodelay(true);
            keep_alive(&stream);
            let (stream, protocol) = self.server.accept(stream).await?;
            if protocol == RENEWAL_PROTOCOL {
                let renewed = self.renewals.serve(stream).await;
                return Err(renewed.map_or_else(GatewayStreamError::Renewal, |()| GatewayStreamError::Renewed));
            }
            let socket = self.socket(entry).await.map_err(GatewayStreamError::Socket)?;
            let mut pace = HandshakePace::new(Instant::now());
            let admits = |datagram: &[u8]| pace.admits(datagram, Instant::now());
            // All streams share the registry's lock, so that it is taken once, and not for each datagram.
            let mut is_met = false;
            let carried = carry(stream, &socket, SILENCE, admits, |datagram| {
                if !is_met && datagram.first().is_some_and(|kind| TO_PEERS.contains(kind)) {
                    is_met = true;
                    entry.set_met();
                }
            });
            tokio::select! {
                ended = carried => ended.map_err(GatewayStreamError::Carried),
                () = is_unmet(entry) => Err(GatewayStreamError::Unmet),
            }
        };
        match ended.await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    /// Opens a socket for one stream. Its address stands for the client's, so that the relay's limits for each sender apply. The ingress limits the
    /// streams of each client.
    async fn socket(&self, entry: &StreamEntry) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddr::from((entry.stand_in(), 0))).await?;
        socket.connect(self.relay).await?;
        Ok(socket)
    }
}

/// Returns once a stream has existed for too long without a handshake.
async fn is_unmet(entry: &StreamEntry) {
    sleep(UNMET).await;
    if entry.is_met() {
        std::future::pending::<()>().await;
    }
}

/// Whether an endpoint of a peer is the local socket of a stream. It ends with the stream.
pub(super) fn is_of_stream(endpoint: &SocketAddr) -> bool {
    matches!(endpoint.ip(), IpAddr::V4(address) if stream_registry::is_stand_in(address))
}
