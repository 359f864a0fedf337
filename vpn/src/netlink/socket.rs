//! One request, and its answers until the kernel signals the end.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// The kernel did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket could not be opened, or failed.
    #[error("cannot communicate with the kernel over netlink")]
    Socket(#[source] io::Error),
    /// The kernel refused the request.
    #[error("the kernel refused to {operation}")]
    Refused {
        /// The requested operation.
        operation: &'static str,
        /// The kernel's errno.
        #[source]
        source: io::Error,
    },
    /// The answer could not be decoded.
    #[error("cannot parse the kernel's response to the request to {operation}")]
    Decode {
        /// The requested operation.
        operation: &'static str,
        /// The error of the decoder.
        #[source]
        source: netlink_packet_core::DecodeError,
    },
    /// The kernel does not have the requested object.
    #[error("the kernel has no {0}")]
    Missing(String),
}

impl NetlinkError {
    /// Returns the kernel's errno, if the kernel refused the request.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            Self::Socket(_) | Self::Decode { .. } | Self::Missing(_) => None,
        }
    }
}

/// A connection to the kernel.
pub(crate) struct NetlinkSocket {
    socket: Socket,
}

impl NetlinkSocket {
    pub(crate) fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        open().map(|socket| Self { socket }).map_err(NetlinkError::Socket)
    }
}

/// Sends a request and collects the answers. `flags` are added to those of the request. Without `NLM_F_DUMP`, the kernel sends an
/// acknowledgement. With it, the kernel sends a list instead.
pub(crate) fn exchange<T>(
    link: &NetlinkSocket,
    operation: &'static str,
    flags: u16,
    message: T,
) -> Result<Vec<T>, NetlinkError>
where
    T: NetlinkSerializable + NetlinkDeserializable,
{
    let mut header = NetlinkHeader::default();
    let acknowledged = if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
    header.flags = NLM_F_REQUEST | acknowledged | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    link.socket.send(&bytes, 0).map_err(NetlinkError::Socket)?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = link.socket.recv_from_full().map_err(NetlinkError::Socket)?;
        if take(&datagram, operation, &mut answers)? {
            return Ok(answers);
        }
    }
}

/// Decodes the messages of one datagram. Returns `true` if it was the last datagram.
fn take<T: NetlinkDeserializable>(
    datagram: &[u8],
    operation: &'static str,
    answers: &mut Vec<T>,
) -> Result<bool, NetlinkError> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message =
            NetlinkMessage::<T>::deserialize(rest).map_err(|source| NetlinkError::Decode { operation, source })?;
        let length = usize::try_from(message.header.length).unwrap_or(rest.len());
        if let NetlinkPayload::InnerMessage(answer) = message.payload {
            answers.push(answer);
        } else if let NetlinkPayload::Error(error) = &message.payload
            && error.code.is_some()
        {
            let source = error.to_io();
            return Err(NetlinkError::Refused { operation, source });
        } else if let NetlinkPayload::Done(_) | NetlinkPayload::Error(_) = message.payload {
            return Ok(true);
        }
        // Messages are aligned to four bytes. A length of zero would loop forever.
        rest = rest.get(length.next_multiple_of(4).max(4)..).unwrap_or_default();
    }
    Ok(false)
}
