//! Sockets as the kernel reports them over netlink (sock_diag(7)). The kernel visits only sockets in the requested states.

use std::{collections::BTreeSet, io};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};

type SocketDiagMessage = NetlinkMessage<SockDiagMessage>;

/// Returns the local ports of listening TCP sockets, and of UDP sockets without a peer.
pub(super) fn listening() -> io::Result<BTreeSet<u16>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut ports = BTreeSet::new();
    for (protocol, states) in [(IPPROTO_TCP, StateFlags::LISTEN), (IPPROTO_UDP, StateFlags::CLOSE)] {
        for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
            let states = states.clone();
            let request = InetRequest { family, protocol, extensions: ExtensionFlags::empty(), states, socket_id };
            ask(&socket, request)?;
            while !take(&socket.recv_from_full()?.0, &mut ports)? {}
        }
    }
    Ok(ports)
}

fn ask(socket: &Socket, request: InetRequest) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = SocketDiagMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Reads the messages of one datagram. Returns true if it contained the last message.
fn take(datagram: &[u8], ports: &mut BTreeSet<u16>) -> io::Result<bool> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = SocketDiagMessage::deserialize(rest).map_err(io::Error::other)?;
        let length = usize::try_from(message.header.length).map_err(io::Error::other)?;
        if let NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) = message.payload {
            ports.insert(found.header.socket_id.source_port);
        } else if let NetlinkPayload::Error(error) = message.payload {
            return Err(error.to_io());
        } else if let NetlinkPayload::Done(_) = message.payload {
            return Ok(true);
        }
        // Messages are aligned to four bytes. The minimum of four prevents an endless loop on a length of zero.
        rest = rest.get(length.next_multiple_of(4).max(4)..).unwrap_or_default();
    }
    Ok(false)
}
