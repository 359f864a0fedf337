//! Checks whether UDP reaches a gateway again, while its tunnel uses TLS.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use futures::FutureExt;
use keelway_vpn::{HandshakeProbe, PrivateKey, PublicKey};
use rand::random;
use tokio::{
    net::UdpSocket,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// How long after the change to TLS the first check begins: the gateway may only have been restarted.
const FIRST: Duration = Duration::from_secs(5);
/// The interval of checks. A gateway keeps eight sessions of a worker, and each check may take one.
const EVERY: Duration = Duration::from_secs(30);
/// How long a response may take.
const ANSWER: Duration = Duration::from_secs(2);
/// A limit above the size of handshake messages.
const MOST_BYTES: usize = 256;

/// The checks of one gateway, at one endpoint after the other.
pub(super) struct UdpCheck {
    next: Instant,
    turn: usize,
    running: Option<(SocketAddr, AbortOnDropHandle<bool>)>,
}

impl UdpCheck {
    /// Plans the first check.
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now + FIRST, turn: 0, running: None }
    }

    /// Begins a check that is due. Returns an endpoint at which the gateway responded.
    pub(super) fn poll(
        &mut self,
        endpoints: &[SocketAddr],
        keys: (&PrivateKey, &PublicKey),
        now: Instant,
    ) -> Option<SocketAddr> {
        if let Some((endpoint, task)) = &mut self.running
            && let Some(ended) = task.now_or_never()
        {
            let endpoint = *endpoint;
            self.running = None;
            if matches!(ended, Ok(true)) {
                return Some(endpoint);
            }
        }
        if self.running.is_none() && now >= self.next && !endpoints.is_empty() {
            let endpoint = endpoints[self.turn % endpoints.len()];
            self.turn = self.turn.wrapping_add(1);
            self.next = now + EVERY;
            let probe = HandshakeProbe::new(keys.0, keys.1, random());
            let task = tokio::spawn(async move {
                let Some(probe) = probe else { return false };
                matches!(timeout(ANSWER, responds(endpoint, probe)).await, Ok(Ok(())))
            });
            self.running = Some((endpoint, AbortOnDropHandle::new(task)));
        }
        None
    }
}

/// Returns once the gateway responds.
async fn responds(endpoint: SocketAddr, mut probe: HandshakeProbe) -> io::Result<()> {
    let any = if endpoint.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(endpoint).await?;
    socket.send(probe.initiation()).await?;
    let mut datagram = [0; MOST_BYTES];
    loop {
        let length = socket.recv(&mut datagram).await?;
        if probe.is_response(&datagram[..length]) {
            return Ok(());
        }
    }
}
