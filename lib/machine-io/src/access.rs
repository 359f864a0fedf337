//! Access to a machine through its CRI socket: the root directory and the network namespace of the process that listens there.

mod addresses;
#[cfg(feature = "testing")]
mod health_answers;
mod machine_root;
mod namespace;
mod ports;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keelway_api::{machine::PortFacts, name::InstallationId};
use tokio::net::{TcpSocket, TcpStream};

use crate::files::{Digests, MachineFiles};
pub use machine_root::MachineRoot;

/// The root or network of a machine could not be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// No process accepts connections on the socket.
    #[error("cannot connect to {}", path.display())]
    Connect {
        /// The CRI socket.
        path: PathBuf,
        /// The error of the connection.
        #[source]
        source: io::Error,
    },
    /// The kernel does not report the process that listens.
    #[error("cannot find the process that listens on {}", path.display())]
    Peer {
        /// The CRI socket.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The process ended while its root and network were being opened.
    #[error("the process that listened on {} has exited", path.display())]
    Ended {
        /// The CRI socket.
        path: PathBuf,
    },
    /// The root or network namespace of the process cannot be opened.
    #[error("cannot open {what}; root privileges are required")]
    Open {
        /// A path below `/proc`.
        what: String,
        /// The error of the open call.
        #[source]
        source: io::Error,
    },
    /// The network namespace of the machine could not be entered or left.
    #[error("cannot enter the machine's network namespace")]
    Enter {
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The addresses of the machine cannot be read.
    #[error("cannot read the machine's addresses")]
    Addresses {
        /// The error of the read.
        #[source]
        source: io::Error,
    },
    /// The machine's port tables cannot be read.
    #[error("cannot read the machine's ports")]
    Ports {
        /// The error of the read.
        #[source]
        source: io::Error,
    },
    /// The machine's owner could not be recorded.
    #[error("cannot record the installation that the machine obeys")]
    Owner {
        /// The error of the write.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection from the machine to the address failed.
    #[error("cannot connect to {address} from the machine")]
    Dial {
        /// The address that was dialled.
        address: SocketAddr,
        /// The error of the connection.
        #[source]
        source: io::Error,
    },
}

/// A machine whose CRI socket is on this host. The socket's path is resolved in this process; everything else is resolved in the root and network of
/// the listening process.
#[derive(Debug)]
pub struct MachineAccess {
    socket: Option<PathBuf>,
    place: Mutex<Arc<MachineRoot>>,
    digests: Arc<Digests>,
    #[cfg(feature = "testing")]
    answers: Option<health_answers::HealthAnswers>,
}

impl MachineAccess {
    /// Returns the machine behind a CRI socket: finds the listening process, and holds its root and network open.
    pub async fn of_socket(path: &Path) -> Result<Self, AccessError> {
        let place = MachineRoot::of_socket(path).await?;
        Ok(Self::new(Some(path.to_owned()), place))
    }

    fn new(socket: Option<PathBuf>, place: MachineRoot) -> Self {
        Self {
            socket,
            place: Mutex::new(Arc::new(place)),
            digests: Arc::default(),
            #[cfg(feature = "testing")]
            answers: None,
        }
    }

    /// Returns a machine with the given root directory and the network of this process.
    #[must_use]
    pub fn of_root(root: OwnedFd) -> Self {
        Self::new(None, MachineRoot::of_root(root))
    }

    /// Connects to an address from the machine's network within the given time.
    pub async fn dial(&self, address: SocketAddr, within: Duration) -> Result<TcpStream, AccessError> {
        let place = self.place().await?;
        let failed = |source| AccessError::Dial { address, source };
        // A socket belongs to the namespace in which it is created, so only its creation must run there.
        let socket = place.network.make(|| socket_for(address));
        let socket = socket.map_err(|source| AccessError::Enter { source })?.map_err(failed)?;
        match tokio::time::timeout(within, socket.connect(address)).await {
            Ok(connected) => connected.map_err(failed),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Records the installation that the machine obeys, and replaces any earlier record.
    pub async fn write_owner(&self, installation: &InstallationId) -> Result<(), AccessError> {
        let (place, installation) = (self.place().await?, installation.clone());
        let writing = tokio::task::spawn_blocking(move || MachineFiles::new(place.root()).write_owner(&installation));
        let written = writing.await.map_err(|error| AccessError::Owner { source: error.into() })?;
        written.map_err(|error| AccessError::Owner { source: Box::new(error) })
    }

    /// Returns the ports in use on the machine, and the kernel's range of ephemeral ports.
    pub async fn ports(&self) -> Result<PortFacts, AccessError> {
        let place = self.place().await?;
        let facts = place.network.run(ports::read).await;
        facts.map_err(|source| AccessError::Enter { source })?.map_err(|source| AccessError::Ports { source })
    }

    /// Returns the addresses of the machine's interfaces.
    pub async fn addresses(&self) -> Result<BTreeSet<IpAddr>, AccessError> {
        let place = self.place().await?;
        let found = place.network.run(addresses::read).await;
        found.map_err(|source| AccessError::Enter { source })?.map_err(|source| AccessError::Addresses { source })
    }

    /// Returns the cached digests of the machine's files.
    pub(crate) fn digests(&self) -> Arc<Digests> {
        Arc::clone(&self.digests)
    }

    /// Returns the machine's root and network. If the runtime was restarted, looks them up again.
    pub async fn place(&self) -> Result<Arc<MachineRoot>, AccessError> {
        let known = Arc::clone(&self.place.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(socket) = self.socket.as_ref().filter(|_| !known.is_alive()) else {
            return Ok(known);
        };
        let found = Arc::new(MachineRoot::of_socket(socket).await?);
        tracing::info!(socket = %socket.display(), "another process listens there now");
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&found);
        Ok(found)
    }
}

/// `TCP_NODELAY`: otherwise a request can wait for the acknowledgement of the handshake, which takes 40 ms.
fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_nodelay(true)?;
    Ok(socket)
}
