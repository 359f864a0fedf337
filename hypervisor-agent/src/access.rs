//! A machine as its CRI socket shows it: the root and the network of the process that listens there.

#[cfg(feature = "testing")]
mod health_answers;
mod machine_root;
mod namespace;
mod ports;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keelway_api::{machine::PortFacts, name::InstallationId};
use tokio::net::{TcpSocket, TcpStream};

use crate::files::{Digests, MachineFiles};
pub(crate) use machine_root::MachineRoot;

/// Why a machine's root or network could not be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Nobody answers on the socket.
    #[error("cannot connect to {}", path.display())]
    Connect {
        /// The CRI socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel does not say who listens.
    #[error("cannot tell which process listens on {}", path.display())]
    Peer {
        /// The CRI socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The process ended while it was looked at.
    #[error("the process that listened on {} has just ended", path.display())]
    Ended {
        /// The CRI socket.
        path: PathBuf,
    },
    /// The process' root or network namespace cannot be opened.
    #[error("cannot open {what}; root's rights are needed")]
    Open {
        /// A path below `/proc`.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Nothing could be done in the machine's network namespace.
    #[error("cannot enter the machine's network namespace")]
    Enter {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The machine's port tables cannot be read.
    #[error("cannot read the machine's ports")]
    Ports {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The machine's owner could not be recorded.
    #[error("cannot record who the machine obeys")]
    Owner {
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No connection from the machine to the address.
    #[error("cannot connect to {address} from the machine")]
    Dial {
        /// Whom.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A machine whose CRI socket is on this one. The path is as this process sees it; all else is as the listener sees it.
#[derive(Debug)]
pub struct MachineAccess {
    socket: Option<PathBuf>,
    place: Mutex<Arc<MachineRoot>>,
    digests: Arc<Digests>,
    #[cfg(feature = "testing")]
    answers: Option<health_answers::HealthAnswers>,
}

impl MachineAccess {
    /// The machine behind a CRI socket: finds the listening process and holds on to its root and network.
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

    /// A machine with its root at the given directory, on this process' own network.
    #[must_use]
    pub fn of_root(root: OwnedFd) -> Self {
        Self::new(None, MachineRoot::of_root(root))
    }

    /// A connection made from the machine's network, within the given time.
    pub async fn dial(&self, address: SocketAddr, within: Duration) -> Result<TcpStream, AccessError> {
        let place = self.place().await?;
        let failed = |source| AccessError::Dial { address, source };
        // A socket belongs to the namespace that it was made in; only its making has to be done there.
        let socket = place.network.make(|| socket_for(address));
        let socket = socket.map_err(|source| AccessError::Enter { source })?.map_err(failed)?;
        match tokio::time::timeout(within, socket.connect(address)).await {
            Ok(connected) => connected.map_err(failed),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Records who the machine obeys, whoever it obeyed before.
    pub async fn write_owner(&self, installation: &InstallationId) -> Result<(), AccessError> {
        let (place, installation) = (self.place().await?, installation.clone());
        let writing = tokio::task::spawn_blocking(move || MachineFiles::new(place.root()).write_owner(&installation));
        let written = writing.await.map_err(|error| AccessError::Owner { source: error.into() })?;
        written.map_err(|error| AccessError::Owner { source: Box::new(error) })
    }

    /// The ports that are in use on the machine, and those that its kernel gives away.
    pub async fn ports(&self) -> Result<PortFacts, AccessError> {
        let place = self.place().await?;
        let facts = place.network.run(ports::read).await;
        facts.map_err(|source| AccessError::Enter { source })?.map_err(|source| AccessError::Ports { source })
    }

    /// What was read of its files.
    pub(crate) fn digests(&self) -> Arc<Digests> {
        Arc::clone(&self.digests)
    }

    /// The machine's root and network as of now: looked up again where the runtime was restarted.
    pub(crate) async fn place(&self) -> Result<Arc<MachineRoot>, AccessError> {
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

/// A question is never held back until the other side confirmed the end of the handshake, which takes it 40 ms.
fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_nodelay(true)?;
    Ok(socket)
}
