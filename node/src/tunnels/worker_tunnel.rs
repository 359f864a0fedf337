//! One tunnel: its data path, and the endpoint at which it reaches its gateway.

use std::{net::SocketAddr, time::Duration};

use jiff::Timestamp;
use keelway_base::error_chain::ErrorChain;
use keelway_vpn::{DataPath, DataPathError, PeerSet, PrivateKey, netlink::interface::Interface, uapi::UapiServer};
use tokio::time::Instant;

use super::{
    DesiredTunnels, TunnelError,
    endpoint_choice::{EndpointChoice, TunnelTransport},
    gateways::TunnelGateway,
    have,
    tls_stream::TunnelTlsStream,
    udp_check::UdpCheck,
};

/// The life of the keys of a session: `REJECT_AFTER_TIME` of WireGuard.
const SESSION: Duration = Duration::from_secs(180);

pub(super) struct WorkerTunnel {
    pub(super) gateway: TunnelGateway,
    pub(super) endpoints: EndpointChoice,
    pub(super) slot: usize,
    pub(super) path: Box<dyn DataPath>,
    /// The duration of the last successful check.
    pub(super) latency: Option<Duration>,
    /// The socket for `wg`, if the kernel does not serve the device itself.
    _served: Option<UapiServer>,
    /// The stream, and the checks of UDP, while the tunnel uses TLS.
    stream: Option<(TunnelTlsStream, UdpCheck)>,
}

impl WorkerTunnel {
    /// Creates a tunnel that is not set up yet.
    pub(super) fn new(
        gateway: TunnelGateway,
        slot: usize,
        path: Box<dyn DataPath>,
        served: Option<UapiServer>,
    ) -> Self {
        let endpoints = EndpointChoice::new(&gateway.endpoints);
        Self { gateway, endpoints, slot, path, latency: None, _served: served, stream: None }
    }

    /// Adopts the endpoints that the gateway has now. Returns whether the gateway is still desired.
    pub(super) fn adopt(&mut self, gateways: &[TunnelGateway]) -> bool {
        let Some(now) = gateways.iter().find(|gateway| gateway.has_same_tunnel(&self.gateway)) else { return false };
        self.endpoints.set(&now.endpoints);
        self.gateway = now.clone();
        true
    }

    /// Sets the peer, brings the interface up, and adds this worker's addresses.
    pub(super) fn settle(&mut self, wanted: &DesiredTunnels) -> Result<(), TunnelError> {
        let endpoint = self.endpoints.current().address;
        self.set_peer(wanted).map_err(|source| TunnelError::Device { endpoint, source })?;
        let up = || {
            let interface = Interface::find(self.path.name())?;
            interface.bring_up(wanted.mtu)?;
            // Even with a loose `rp_filter`, Linux drops packets from another tunnel's peers on an interface without an address.
            have(&interface, wanted.assignment.addresses.iter())
        };
        up().map_err(TunnelError::Network)
    }

    /// Records a check, and uses another endpoint if the one in use is silent, or if UDP reaches the gateway again. A session continues at the other
    /// endpoint. Without one, it starts a new handshake: WireGuard itself would retry after five seconds. Returns whether another endpoint is in use.
    pub(super) fn note(&mut self, answered: bool, wanted: &DesiredTunnels, own: &PrivateKey) -> bool {
        let peer = self.path.stats().ok().and_then(|peers| peers.into_iter().next());
        let before = self.endpoints.current();
        if answered && let Some(heard) = peer.as_ref().and_then(|peer| peer.endpoint) {
            self.endpoints.note_heard(heard);
        }
        let is_silent = self.endpoints.note(answered);
        if !is_silent && let Some(endpoint) = self.udp_responds(own) {
            self.endpoints.note_heard(endpoint);
        }
        let now = self.endpoints.current();
        if now != before && self.endpoints.is_searched_again() {
            tracing::debug!(from = %before, to = %now, "the tunnel uses another endpoint of the gateway");
        } else if now != before {
            tracing::warn!(from = %before, to = %now, "the tunnel uses another endpoint of the gateway");
        }
        let met = peer.and_then(|peer| peer.last_handshake);
        let is_fresh = if met.is_some() { is_silent && !has_session(met, Timestamp::now()) } else { !answered };
        if !is_fresh && now == before {
            return false;
        }
        let forgotten = if is_fresh { self.path.set_peers(&PeerSet::default()).map(drop) } else { Ok(()) };
        if let Err(error) = forgotten.and_then(|()| self.set_peer(wanted)) {
            tracing::warn!("cannot change the endpoint of the gateway: {}", ErrorChain(&error));
        }
        now != before
    }

    /// Sets the peer at the endpoint in use.
    fn set_peer(&mut self, wanted: &DesiredTunnels) -> Result<(), DataPathError> {
        let endpoint = self.local_endpoint(wanted);
        self.path.set_peers(&self.gateway.peers(endpoint, &wanted.ranges)).map(drop)
    }

    /// Returns the endpoint to which WireGuard sends: the gateway's, or the local end of a stream to it.
    fn local_endpoint(&mut self, wanted: &DesiredTunnels) -> SocketAddr {
        let current = self.endpoints.current();
        if current.transport == TunnelTransport::Udp {
            self.stream = None;
            return current.address;
        }
        if self.stream.as_ref().is_none_or(|(stream, _)| stream.gateway() != current.address) {
            let transport = wanted.tls.clone();
            let opened = transport.map(|transport| TunnelTlsStream::open(current.address, transport)).transpose();
            let opened = opened.unwrap_or_else(|error| {
                tracing::error!(%error, "cannot open a local socket for a tunnel over TLS");
                None
            });
            self.stream = opened.map(|stream| (stream, UdpCheck::new(Instant::now())));
        }
        self.stream.as_ref().map_or(current.address, |(stream, _)| stream.local())
    }

    /// Returns an endpoint at which the gateway responds over UDP, while the tunnel uses TLS.
    fn udp_responds(&mut self, own: &PrivateKey) -> Option<SocketAddr> {
        let (_, check) = self.stream.as_mut()?;
        check.poll(&self.gateway.endpoints, (own, &self.gateway.key), Instant::now())
    }
}

/// Whether the session of the last handshake, in time since the Unix epoch, may still be in use.
fn has_session(last_handshake: Option<Duration>, now: Timestamp) -> bool {
    let began = last_handshake.and_then(|at| Timestamp::from_second(at.as_secs().try_into().ok()?).ok());
    began.is_some_and(|began| Duration::try_from(now.duration_since(began)).is_ok_and(|age| age < SESSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_as_long_as_its_keys() {
        let now = Timestamp::from_second(1_000).unwrap();
        let at = |second| has_session(Some(Duration::from_secs(second)), now);
        assert!(at(1_000) && at(821));
        assert!(!at(820) && !has_session(None, now));
    }
}
