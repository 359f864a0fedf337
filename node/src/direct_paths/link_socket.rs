//! UDP sockets inside a tunnel. Each is bound to its interface: what it receives has passed WireGuard's authentication there, and was not sent by
//! a pod of this worker.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::UdpSocket, sync::mpsc};
use tokio_util::task::AbortOnDropHandle;

/// A limit above the size of all messages.
const MOST_BYTES: usize = 2048;

/// An interface, which another one of the same name may replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundInterface {
    pub(super) name: String,
    pub(super) index: u32,
}

/// A message, with the mark of the socket that received it.
#[derive(Debug)]
pub(super) struct LinkMessage<M> {
    pub(super) mark: M,
    pub(super) from: IpAddr,
    pub(super) bytes: Vec<u8>,
}

/// A socket, and the task that receives from it.
pub(super) struct LinkSocket {
    interface: BoundInterface,
    local: SocketAddr,
    socket: Arc<UdpSocket>,
    _receiver: AbortOnDropHandle<()>,
}

impl LinkSocket {
    /// Opens a socket at this address, which is bound to the interface. It sends what it receives from the same port to `messages`.
    pub(super) fn open<M: Clone + Send + Sync + 'static>(
        interface: BoundInterface,
        local: SocketAddr,
        mark: M,
        messages: mpsc::Sender<LinkMessage<M>>,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
        // Before the address, which other sockets have on other interfaces.
        socket.bind_device(Some(interface.name.as_bytes()))?;
        socket.set_nonblocking(true)?;
        socket.bind(&local.into())?;
        let socket = Arc::new(UdpSocket::from_std(socket.into())?);
        let receiver = tokio::spawn(receive(Arc::clone(&socket), local.port(), mark, messages));
        Ok(Self { interface, local, socket, _receiver: AbortOnDropHandle::new(receiver) })
    }

    pub(super) fn is_at(&self, interface: &BoundInterface, local: SocketAddr) -> bool {
        self.interface == *interface && self.local == local
    }

    /// Sends a message to the same port of another address. A message that cannot be sent is lost, as in the network.
    pub(super) fn send(&self, bytes: &[u8], to: IpAddr) {
        let to = SocketAddr::new(to, self.local.port());
        if let Err(error) = self.socket.try_send_to(bytes, to) {
            tracing::debug!(%error, %to, interface = self.interface.name, "cannot send a message inside the tunnel");
        }
    }
}

async fn receive<M: Clone + Send + Sync + 'static>(
    socket: Arc<UdpSocket>,
    port: u16,
    mark: M,
    messages: mpsc::Sender<LinkMessage<M>>,
) {
    let mut bytes = [0; MOST_BYTES];
    loop {
        match socket.recv_from(&mut bytes).await {
            Ok((length, from)) if from.port() == port => {
                let message = LinkMessage { mark: mark.clone(), from: from.ip(), bytes: bytes[..length].to_vec() };
                if messages.send(message).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => {
                // The interface is gone. The owner opens another socket.
                tracing::debug!(%error, "cannot receive messages inside the tunnel");
                return;
            }
        }
    }
}
