//! The TCP/IP stack of a relay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::task::Waker;
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, TcpPacket};

use super::wire::Wire;
use crate::clock_reading::ClockReading;
use crate::core::Core;
use crate::output::{CoreOutput, HEADROOM};
use crate::packet;

/// Bytes that a connection buffers in each direction. Pages that are never written use no memory.
const BUFFER: usize = 512 * 1024;
/// The same for a connection beyond [`LARGE_BUFFERS`]. It bounds the memory of many connections whose readers stall.
const SMALL_BUFFER: usize = 32 * 1024;
/// The bytes of buffers of all connections up to which a new connection gets large ones.
const LARGE_BUFFERS: usize = 48 << 20;
/// Source ports of connections that the relay opens (the range of RFC 6335, section 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// Connections that a listener has not accepted yet. Further ones are refused.
const BACKLOG: usize = 1024;
/// The interval after which the stack probes a silent peer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long a peer may stay silent. Then its connections end with an error.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Why a connection could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpenError {
    #[error("the relay has stopped")]
    Closed,
    #[error("the relay has no address of that family")]
    NoAddress,
    #[error("all ports are in use")]
    NoPort,
    #[error("the port is in use")]
    PortTaken,
}

pub(super) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    addresses: Vec<IpAddr>,
    mtu: usize,
    /// Connections whose stream was dropped and that are not closed yet.
    orphans: BTreeSet<SocketHandle>,
    listeners: BTreeMap<u16, Backlog>,
    used_ports: BTreeMap<SocketHandle, u16>,
    next_port: u16,
    is_closed: bool,
    /// A call from outside the packet thread changed a socket since the last exchange.
    is_touched: bool,
}

/// The connections of a port that were not accepted yet.
#[derive(Default)]
struct Backlog {
    pending: VecDeque<SocketHandle>,
    waker: Option<Waker>,
}

impl Backlog {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Stack {
    pub(super) fn new(addresses: &[IpAddr], mtu: usize, now: ClockReading) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(crate::device::random_seed());
        let mut wire = Wire { received: &mut VecDeque::new(), sink: None, mtu };
        let mut interface = Interface::new(config, &mut wire, instant(now));
        interface.update_ip_addrs(|own| {
            for address in addresses {
                let length = if address.is_ipv4() { 32 } else { 128 };
                // The stack has a fixed number of addresses, which the bound of `RelayConfig::addresses` matches. Further ones are ignored.
                let _ = own.push(IpCidr::new((*address).into(), length));
            }
        });
        for address in addresses {
            // Every peer is on the other side of the tunnel, so the next hop of the default route does not matter.
            let _ = match address {
                IpAddr::V4(address) => interface.routes_mut().add_default_ipv4_route(*address),
                IpAddr::V6(address) => interface.routes_mut().add_default_ipv6_route(*address),
            };
        }
        Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            addresses: addresses.to_vec(),
            mtu,
            orphans: BTreeSet::new(),
            listeners: BTreeMap::new(),
            used_ports: BTreeMap::new(),
            next_port: *EPHEMERAL.start(),
            is_closed: false,
            is_touched: false,
        }
    }

    /// Ends all connections and refuses new ones.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        for (_, socket) in self.sockets.iter_mut() {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            socket.abort();
        }
        for backlog in self.listeners.values_mut() {
            backlog.wake();
        }
    }

    /// Changes the timeout of an open connection: it ends once the other side has been silent for `dead_after`.
    pub(super) fn settle(&mut self, handle: SocketHandle, dead_after: Duration) {
        self.socket(handle).set_timeout(Some(dead_after.into()));
    }

    /// Returns a connection and marks the stack as changed.
    pub(super) fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.is_touched = true;
        self.sockets.get_mut(handle)
    }

    /// Starts to connect. `patience` is how long the other side may stay silent until the connection is open. `asked_every` is the interval of
    /// keepalive probes afterwards. It is set now, because a change on an open connection would not move its first probe forward.
    pub(super) fn connect(
        &mut self,
        to: SocketAddr,
        patience: Duration,
        asked_every: Duration,
    ) -> Result<SocketHandle, OpenError> {
        if self.is_closed {
            return Err(OpenError::Closed);
        }
        let from = self.addresses.iter().find(|own| own.is_ipv4() == to.is_ipv4());
        let from = *from.ok_or(OpenError::NoAddress)?;
        let port = self.free_port().ok_or(OpenError::NoPort)?;
        let mut socket = new_socket(next_buffer(&self.sockets));
        socket.set_timeout(Some(patience.into()));
        socket.set_keep_alive(Some(asked_every.into()));
        socket.connect(self.interface.context(), to, SocketAddr::new(from, port)).map_err(|_| OpenError::NoAddress)?;
        let handle = self.sockets.add(socket);
        self.used_ports.insert(handle, port);
        self.is_touched = true;
        Ok(handle)
    }

    /// Returns the bytes of all buffers, used or not.
    pub(super) fn buffer_bytes(&self) -> usize {
        buffer_bytes(&self.sockets)
    }

    fn free_port(&mut self) -> Option<u16> {
        let used: BTreeSet<u16> = self.used_ports.values().copied().collect();
        for _ in EPHEMERAL {
            let port = self.next_port;
            self.next_port = if port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
            if !used.contains(&port) {
                return Some(port);
            }
        }
        None
    }

    pub(super) fn listen(&mut self, port: u16) -> Result<(), OpenError> {
        if self.is_closed {
            return Err(OpenError::Closed);
        }
        if self.listeners.contains_key(&port) {
            return Err(OpenError::PortTaken);
        }
        self.listeners.insert(port, Backlog::default());
        Ok(())
    }

    pub(super) fn unlisten(&mut self, port: u16) {
        let backlog = self.listeners.remove(&port);
        for handle in backlog.into_iter().flat_map(|backlog| backlog.pending) {
            self.close_detached(handle);
        }
    }

    /// Accepts a connection of a port. If there is none, it registers `waker` and returns `None`. `Err`: there will be none.
    pub(super) fn accept(&mut self, port: u16, waker: &Waker) -> Result<Option<SocketHandle>, OpenError> {
        if self.is_closed {
            return Err(OpenError::Closed);
        }
        let backlog = self.listeners.get_mut(&port).ok_or(OpenError::Closed)?;
        let ready = backlog.pending.iter().position(|handle| {
            let socket = self.sockets.get::<tcp::Socket<'_>>(*handle);
            socket.may_send() || socket.can_recv()
        });
        if let Some(handle) = ready.and_then(|at| backlog.pending.remove(at)) {
            return Ok(Some(handle));
        }
        backlog.waker = Some(waker.clone());
        Ok(None)
    }

    /// Releases a connection: it closes properly without a stream that holds it.
    pub(super) fn close_detached(&mut self, handle: SocketHandle) {
        let socket = self.socket(handle);
        let is_half_open = matches!(socket.state(), tcp::State::Listen | tcp::State::SynSent | tcp::State::SynReceived);
        if is_half_open || socket.can_recv() {
            socket.abort();
        } else {
            socket.close();
            socket.set_timeout(Some(DEAD_AFTER.into()));
        }
        self.orphans.insert(handle);
    }

    /// Removes orphans that are closed.
    fn remove_closed(&mut self) {
        let sockets = &mut self.sockets;
        let used_ports = &mut self.used_ports;
        self.orphans.retain(|handle| {
            let socket = sockets.get::<tcp::Socket<'_>>(*handle);
            // A connection that both sides have closed does not need its buffers any more. An aborted socket has a remote endpoint until its
            // reset is sent.
            let is_over = socket.state() == tcp::State::TimeWait
                || (socket.state() == tcp::State::Closed && socket.remote_endpoint().is_none());
            if is_over {
                sockets.remove(*handle);
                used_ports.remove(handle);
            }
            !is_over
        });
    }

    /// Provides a listening socket for a SYN: each listening socket accepts only one connection.
    fn prepare_for(&mut self, packet: &[u8]) {
        let Some(port) = syn_port(packet) else { return };
        let Some(backlog) = self.listeners.get_mut(&port) else {
            return;
        };
        let sockets = &mut self.sockets;
        backlog.pending.retain(|handle| {
            let is_dead = sockets.get::<tcp::Socket<'_>>(*handle).state() == tcp::State::Closed;
            if is_dead {
                sockets.remove(*handle);
            }
            !is_dead
        });
        let is_spare = |handle: &SocketHandle| sockets.get::<tcp::Socket<'_>>(*handle).is_listening();
        if backlog.pending.len() >= BACKLOG || backlog.pending.iter().any(is_spare) {
            return;
        }
        let mut socket = new_socket(next_buffer(sockets));
        if socket.listen(port).is_ok() {
            backlog.pending.push_back(sockets.add(socket));
        }
    }

    /// Processes received packets and sends what the sockets have to send.
    pub(super) fn exchange(
        &mut self,
        received: &mut VecDeque<Vec<u8>>,
        core: &mut Core,
        now: ClockReading,
        out: &mut CoreOutput,
    ) {
        self.is_touched = false;
        let timestamp = instant(now);
        let mut one = VecDeque::with_capacity(1);
        while let Some(packet) = received.pop_front() {
            self.prepare_for(&packet[HEADROOM..]);
            one.push_back(packet);
            let mut wire = Wire { received: &mut one, sink: Some((core, now, out)), mtu: self.mtu };
            self.interface.poll_ingress_single(timestamp, &mut wire, &mut self.sockets);
        }
        let mut wire = Wire { received: &mut one, sink: Some((core, now, out)), mtu: self.mtu };
        self.interface.poll(timestamp, &mut wire, &mut self.sockets);
        self.remove_closed();
        for backlog in self.listeners.values_mut() {
            backlog.wake();
        }
    }

    /// Returns when [`Self::exchange`] must run again without a new packet.
    pub(super) fn deadline(&mut self, now: ClockReading) -> Option<Duration> {
        if self.is_touched {
            return Some(now.elapsed);
        }
        let next = self.interface.poll_at(instant(now), &self.sockets)?;
        Some(Duration::from_micros(next.total_micros().try_into().unwrap_or_default()))
    }
}

fn buffer_bytes(sockets: &SocketSet<'_>) -> usize {
    let of_socket = |(_, socket): (SocketHandle, &smoltcp::socket::Socket<'_>)| {
        let smoltcp::socket::Socket::Tcp(socket) = socket;
        socket.recv_capacity() + socket.send_capacity()
    };
    sockets.iter().map(of_socket).sum()
}

/// Returns the size of the buffers of a new connection.
fn next_buffer(sockets: &SocketSet<'_>) -> usize {
    if buffer_bytes(sockets) + 2 * BUFFER <= LARGE_BUFFERS { BUFFER } else { SMALL_BUFFER }
}

fn new_socket(bytes: usize) -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; bytes]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.set_keep_alive(Some(KEEP_ALIVE.into()));
    socket.set_timeout(Some(DEAD_AFTER.into()));
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    socket.set_congestion_control(tcp::CongestionControl::Cubic);
    socket
}

fn instant(now: ClockReading) -> Instant {
    Instant::from_micros(i64::try_from(now.elapsed.as_micros()).unwrap_or(i64::MAX))
}

/// Returns the destination port of a packet that opens a TCP connection.
fn syn_port(packet: &[u8]) -> Option<u16> {
    let segment = TcpPacket::new_checked(packet::tcp_segment(packet)?).ok()?;
    (segment.syn() && !segment.ack()).then(|| segment.dst_port())
}
