//! The outer sockets: one for each address family on one port, with segmentation offload in both directions.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt::Ipv6DontFrag};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::sockopt::{set_ip_mtu_discover, set_ipv6_mtu_discover};
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use socket2::{Domain, Protocol, SockAddr, Type};

use super::offload_pauses::OffloadPauses;
use crate::clock_reading::ClockReading;
use crate::output::{CoreOutput, DatagramPath, DatagramRun};

/// The size of a kernel buffer, in bytes. It holds a burst while the process does not run.
const KERNEL_BUFFER: usize = 4 << 20;
/// The size of one receive buffer: as many coalesced datagrams as the kernel returns at once.
const RECEIVE_BUFFER: usize = 1 << 16;
/// The number of buffers that one system call fills.
const RECEIVE_BATCH: usize = 8;
/// The longest time that a full send buffer may block the thread.
const SEND_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The errors of an operation on an address family that the machine does not have.
const NO_FAMILY: &[rustix::io::Errno] = &[rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];

/// The socket of the listen port could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on UDP port {port}")]
pub struct BindError {
    port: u16,
    #[source]
    source: io::Error,
}

/// The buffers of a socket, in bytes. A machine may limit those of a process without privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelBuffers {
    /// The receive buffer.
    pub receive: usize,
    /// The send buffer.
    pub send: usize,
    /// The size that each should have.
    pub wanted: usize,
}

/// An IPv4 socket and, if the machine has IPv6, an IPv6 socket on the same port.
pub(crate) struct Sockets {
    pub(crate) v4: Socket,
    pub(crate) v6: Option<Socket>,
    pub(crate) port: u16,
}

pub(crate) struct Socket {
    udp: UdpSocket,
    state: RwLock<UdpSocketState>,
    pauses: Mutex<OffloadPauses>,
}

/// The local address from which datagrams were sent.
enum Sent {
    AsAsked,
    /// A local address other than the requested one.
    FromElsewhere,
}

impl Sockets {
    /// Listens on `port`, or on any free one if it is 0. `fwmark` marks outgoing packets, 0 for no mark.
    pub(crate) fn bind(port: u16, fwmark: u32) -> Result<Self, BindError> {
        /// Retries with another port: another process may have the IPv6 port of the number that the kernel chose for IPv4.
        const TRIES: usize = 10;
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..TRIES {
            match Self::try_bind(port, fwmark) {
                Ok(sockets) => return Ok(sockets),
                Err(error) => last = error,
            }
            if port != 0 {
                break;
            }
        }
        Err(BindError { port, source: last })
    }

    fn try_bind(port: u16, fwmark: u32) -> io::Result<Self> {
        let v4 = Socket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), fwmark)?;
        let port = v4.udp.local_addr()?.port();
        let v6 = match Socket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), fwmark) {
            Ok(socket) => Some(socket),
            Err(error) if is_without_family(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { v4, v6, port })
    }

    /// Returns the smallest buffers of the sockets. The kernel reports twice the allocated size, because of its own overhead.
    pub(crate) fn kernel_buffers(&self) -> KernelBuffers {
        let sockets = || std::iter::once(&self.v4).chain(&self.v6).map(|socket| socket2::SockRef::from(&socket.udp));
        let receive = sockets().filter_map(|socket| socket.recv_buffer_size().ok()).min();
        let send = sockets().filter_map(|socket| socket.send_buffer_size().ok()).min();
        let given = |size: Option<usize>| size.unwrap_or_default() / 2;
        KernelBuffers { receive: given(receive), send: given(send), wanted: KERNEL_BUFFER }
    }

    /// Sets the mark of packets that are sent from now on.
    pub(crate) fn set_fwmark(&self, fwmark: u32) -> io::Result<()> {
        for socket in std::iter::once(&self.v4).chain(&self.v6) {
            socket2::SockRef::from(&socket.udp).set_mark(fwmark)?;
        }
        Ok(())
    }

    /// Sends all datagrams. A datagram that cannot be sent is lost, as it could be on any link. Returns a requested local address that the
    /// machine no longer has, if there is one.
    pub(crate) fn send(&self, out: &CoreOutput, now: ClockReading) -> Option<IpAddr> {
        let mut stale = None;
        for run in out.runs(usize::MAX) {
            let socket = if run.path.remote.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() };
            match socket.map(|socket| socket.send_run(&run, now.elapsed)) {
                None | Some(Ok(Sent::AsAsked)) => {}
                Some(Ok(Sent::FromElsewhere)) => stale = run.path.local,
                Some(Err(error)) => {
                    tracing::debug!(to = %run.path.remote, %error, "lost datagrams");
                }
            }
        }
        stale
    }
}

fn is_without_family(error: &io::Error) -> bool {
    NO_FAMILY.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Socket {
    fn bind(address: SocketAddr, fwmark: u32) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if fwmark != 0 {
            socket.set_mark(fwmark)?;
        }
        socket.bind(&SockAddr::from(address))?;
        let socket = UdpSocket::from(socket);
        let state = new_state(&socket)?;
        // With CAP_NET_ADMIN the size is the requested one. Without it, a limit of the machine may make it smaller.
        if set_socket_recv_buffer_size_force(&socket, KERNEL_BUFFER).is_err() {
            let _ = state.set_recv_buffer_size((&socket).into(), KERNEL_BUFFER);
        }
        if set_socket_send_buffer_size_force(&socket, KERNEL_BUFFER).is_err() {
            let _ = state.set_send_buffer_size((&socket).into(), KERNEL_BUFFER);
        }
        Ok(Self { udp: socket, state: RwLock::new(state), pauses: Mutex::default() })
    }

    fn state(&self) -> RwLockReadGuard<'_, UdpSocketState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn pauses(&self) -> MutexGuard<'_, OffloadPauses> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_state(&self) -> io::Result<()> {
        let state = new_state(&self.udp)?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        Ok(())
    }

    /// Receives what is available, without waiting.
    pub(crate) fn receive(&self, buffers: &mut ReceiveBuffers) -> io::Result<()> {
        buffers.filled = 0;
        let mut slices: Vec<IoSliceMut<'_>> = buffers.space.iter_mut().map(|space| IoSliceMut::new(space)).collect();
        match self.state().recv((&self.udp).into(), &mut slices, &mut buffers.meta) {
            Ok(filled) => {
                buffers.filled = filled;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn send_run(&self, run: &DatagramRun<'_>, now: Duration) -> io::Result<Sent> {
        let local = run.path.local;
        match self.send_chunks(run, local, now) {
            Ok(()) => Ok(Sent::AsAsked),
            Err(_) if local.is_some() => {
                // The local address may no longer exist. `UdpSocketState` mistakes this error for a device without segmentation offload, so it
                // must probe again.
                self.renew_state()?;
                self.send_chunks(run, None, now).map(|()| Sent::FromElsewhere)
            }
            Err(error) => Err(error),
        }
    }

    fn send_chunks(&self, run: &DatagramRun<'_>, local: Option<IpAddr>, now: Duration) -> io::Result<()> {
        let is_single = run.bytes.len() <= run.segment || self.pauses().holds(run.path.remote, now);
        let segments = if is_single { 1 } else { self.state().max_gso_segments().max(1) };
        for chunk in run.bytes.chunks(segments * run.segment) {
            let transmit = Transmit {
                destination: run.path.remote,
                ecn: None,
                contents: chunk,
                segment_size: (chunk.len() > run.segment).then_some(run.segment),
                src_ip: local,
            };
            match self.send_patiently(&transmit) {
                Err(error) if transmit.segment_size.is_some() && error.kind() != io::ErrorKind::WouldBlock => {
                    // A segment is larger than the MTU of the path, or the device has no offload. Send one by one: the IP layer may fragment them.
                    self.pause_offload(run.path.remote, &error, now)?;
                    for contents in chunk.chunks(run.segment) {
                        self.send_patiently(&Transmit { contents, segment_size: None, ..transmit.clone() })?;
                    }
                }
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Sends datagrams to this destination one by one for a while.
    fn pause_offload(&self, destination: SocketAddr, error: &io::Error, now: Duration) -> io::Result<()> {
        tracing::debug!(%destination, %error, "segmentation offload failed; sending datagrams one by one for a while");
        self.pauses().add(destination, now);
        // After some of these errors, `UdpSocketState` does not use offload any more, to any destination.
        if self.state().max_gso_segments() <= 1 { self.renew_state() } else { Ok(()) }
    }

    fn send_patiently(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let state = self.state();
        match state.try_send((&self.udp).into(), transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&self.udp, PollFlags::OUT)], Some(&SEND_PATIENCE))?;
                state.try_send((&self.udp).into(), transmit)
            }
            sent => sent,
        }
    }
}

/// Sets a socket's options.
fn new_state(socket: &UdpSocket) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(socket.into())?;
    // The outer packet may be fragmented, as with the kernel's WireGuard: only the inner MTU matters.
    if socket.local_addr()?.is_ipv4() {
        set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DONT)?;
    } else {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DONT)?;
        // `UdpSocketState` sets it. The kernel would refuse datagrams that are larger than the MTU of the path.
        setsockopt(socket, Ipv6DontFrag, &false)?;
    }
    Ok(state)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }
}

/// Space for the datagrams of one system call.
pub(crate) struct ReceiveBuffers {
    space: Vec<Vec<u8>>,
    meta: Vec<RecvMeta>,
    filled: usize,
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        Self {
            // Each buffer is allocated by itself. A clone would be written to, and would therefore be resident before its first use.
            space: (0..RECEIVE_BATCH).map(|_| vec![0; RECEIVE_BUFFER]).collect(),
            meta: vec![RecvMeta::default(); RECEIVE_BATCH],
            filled: 0,
        }
    }

    /// Returns each buffer's path and its datagrams.
    pub(crate) fn received(&self) -> impl Iterator<Item = (DatagramPath, std::slice::Chunks<'_, u8>)> {
        self.meta[..self.filled].iter().zip(&self.space).map(|(meta, space)| {
            let path = DatagramPath { remote: unmapped(meta.addr), local: meta.dst_ip };
            (path, space[..meta.len].chunks(meta.stride.max(1)))
        })
    }

    /// Whether the kernel may have more datagrams.
    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.space.len()
    }
}

/// Removes the flow label and, except for link-local addresses, the scope, so that one peer has one address.
fn unmapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6) => {
            v6.set_flowinfo(0);
            if !v6.ip().is_unicast_link_local() {
                v6.set_scope_id(0);
            }
            v6.into()
        }
        SocketAddr::V4(_) => address,
    }
}
