//! The outer sockets: one for each address family on one port, with segmentation offload both ways.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::sockopt::{set_ip_mtu_discover, set_ipv6_mtu_discover};
use socket2::{Domain, Protocol, SockAddr, Type};

use crate::output::{DatagramRun, Output, Path};

/// What a burst may fill while the process is not running.
const KERNEL_BUFFER: usize = 4 << 20;
/// One received buffer: as many coalesced datagrams as the kernel hands out at once.
const RECEIVE_BUFFER: usize = 1 << 16;
/// Buffers filled by one system call.
const RECEIVE_BATCH: usize = 8;
/// How long a full send buffer may hold up everything else.
const SEND_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The errno of an operation that the address family does not have.
const NO_FAMILY: &[rustix::io::Errno] = &[rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];

/// The listen port could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on UDP port {port}")]
pub struct BindError {
    port: u16,
    #[source]
    source: io::Error,
}

/// An IPv4 and, where the machine has it, an IPv6 socket on one port.
pub(crate) struct Sockets {
    pub(crate) v4: Socket,
    pub(crate) v6: Option<Socket>,
    pub(crate) port: u16,
}

pub(crate) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Sockets {
    /// Listens on `port`, or on any free one if it is 0. `fwmark` marks what is sent, 0 for no mark.
    pub(crate) fn bind(port: u16, fwmark: u32) -> Result<Self, BindError> {
        /// Another process may hold the other family's port that was picked for the first.
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
        let port = v4.socket.local_addr()?.port();
        let v6 = match Socket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), fwmark) {
            Ok(socket) => Some(socket),
            Err(error) if is_without_family(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { v4, v6, port })
    }

    /// Marks what is sent from now on.
    pub(crate) fn set_fwmark(&self, fwmark: u32) -> io::Result<()> {
        for socket in std::iter::once(&self.v4).chain(&self.v6) {
            socket2::SockRef::from(&socket.socket).set_mark(fwmark)?;
        }
        Ok(())
    }

    /// Sends all datagrams. What cannot be sent is lost, as anywhere on the way.
    pub(crate) fn send(&self, out: &Output) {
        for run in out.runs(usize::MAX) {
            let socket = if run.path.remote.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() };
            if let Some(socket) = socket
                && let Err(error) = socket.send_run(&run)
            {
                tracing::debug!(to = %run.path.remote, %error, "datagrams lost");
            }
        }
    }
}

fn is_without_family(error: &io::Error) -> bool {
    NO_FAMILY.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Socket {
    fn bind(address: SocketAddr, fwmark: u32) -> io::Result<Self> {
        let socket =
            socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if fwmark != 0 {
            socket.set_mark(fwmark)?;
        }
        socket.bind(&SockAddr::from(address))?;
        let socket = UdpSocket::from(socket);
        let state = UdpSocketState::new((&socket).into())?;
        // A limit of the machine may make them smaller.
        let _ = state.set_recv_buffer_size((&socket).into(), KERNEL_BUFFER);
        let _ = state.set_send_buffer_size((&socket).into(), KERNEL_BUFFER);
        // The outer packet may be fragmented, as the kernel's WireGuard lets it be: the inner MTU is the one that counts.
        if address.is_ipv4() {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?;
        } else {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT)?;
        }
        Ok(Self { socket, state })
    }

    /// Receives what there is, without waiting.
    pub(crate) fn receive(&self, buffers: &mut ReceiveBuffers) -> io::Result<()> {
        buffers.filled = 0;
        let mut slices: Vec<IoSliceMut<'_>> =
            buffers.space.iter_mut().map(|space| IoSliceMut::new(space)).collect();
        match self.state.recv((&self.socket).into(), &mut slices, &mut buffers.meta) {
            Ok(filled) => {
                buffers.filled = filled;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn send_run(&self, run: &DatagramRun<'_>) -> io::Result<()> {
        let most = self.state.max_gso_segments().max(1) * run.segment;
        for chunk in run.bytes.chunks(most) {
            let segment = (chunk.len() > run.segment).then_some(run.segment);
            let sent = self.send_chunk(run.path, chunk, segment);
            if segment.is_some() && sent.is_err() {
                // Segments beyond the outer MTU, or a device without offload: one by one, the IP layer may fragment them.
                for datagram in chunk.chunks(run.segment) {
                    self.send_chunk(run.path, datagram, None)?;
                }
            } else {
                sent?;
            }
        }
        Ok(())
    }

    fn send_chunk(&self, path: Path, contents: &[u8], segment_size: Option<usize>) -> io::Result<()> {
        let transmit = Transmit {
            destination: path.remote,
            ecn: None,
            contents,
            segment_size,
            src_ip: path.local,
        };
        match self.send_patiently(&transmit) {
            // The address that was asked may be gone by now.
            Err(_) if path.local.is_some() && segment_size.is_none() => {
                self.send_patiently(&Transmit { src_ip: None, ..transmit })
            }
            sent => sent,
        }
    }

    fn send_patiently(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.state.try_send((&self.socket).into(), transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&SEND_PATIENCE))?;
                self.state.try_send((&self.socket).into(), transmit)
            }
            sent => sent,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Space for one system call's datagrams.
pub(crate) struct ReceiveBuffers {
    space: Vec<Vec<u8>>,
    meta: Vec<RecvMeta>,
    filled: usize,
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        Self {
            space: vec![vec![0; RECEIVE_BUFFER]; RECEIVE_BATCH],
            meta: vec![RecvMeta::default(); RECEIVE_BATCH],
            filled: 0,
        }
    }

    /// Each buffer's path and, by `chunks(stride)`, its datagrams.
    pub(crate) fn received(&self) -> impl Iterator<Item = (Path, std::slice::Chunks<'_, u8>)> {
        self.meta[..self.filled].iter().zip(&self.space).map(|(meta, space)| {
            let path = Path { remote: unmapped(meta.addr), local: meta.dst_ip };
            (path, space[..meta.len].chunks(meta.stride.max(1)))
        })
    }

    /// Whether the kernel may have more.
    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.space.len()
    }
}

/// Without flow label and, but for link-local addresses, scope: one peer has one address.
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
