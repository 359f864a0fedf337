//! A data path without an interface. Inside the process, packets go from peer to peer, or to a TCP/IP stack if they are for the relay's own
//! addresses. It needs one UDP port and no privilege.

mod end;
mod stack;
mod stream;
mod wire;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use self::end::{SharedStack, StackEnd};
pub use self::stream::{Dialer, RelayListener, RelayStream, StreamKeepalive};
use crate::core::{Config, Core, PacketRoute};
use crate::data_path::{DataPath, DataPathError, DataPathKind};
use crate::device::{DeviceInner, StartError, random_seed, spawn, stop};
use crate::io::{KernelBuffers, Sockets, SystemClock};
use crate::key::{PrivateKey, PublicKey};
use crate::limits::CoreLimits;
use crate::output::VpnEvent;
use crate::peers::{PeerChange, PeerSet};
use crate::stats::{PeerStats, SiblingStats};
use crate::uapi;

/// The configuration of a relay.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The name in status and logs.
    pub name: String,
    /// This end's private key, if it is known already.
    pub private_key: Option<PrivateKey>,
    /// The outer port, 0 for any.
    pub listen_port: u16,
    /// This end's inner addresses, eight at most.
    pub addresses: Vec<IpAddr>,
    /// The largest inner packet, in bytes.
    pub mtu: u16,
    /// The bounds of the core.
    pub limits: CoreLimits,
}

/// A relay. It is up until it is dropped.
pub struct Relay {
    name: String,
    shared: Arc<DeviceInner>,
    stack: Arc<SharedStack>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts the relay.
    pub fn start(config: RelayConfig) -> Result<Self, StartError> {
        let sockets = Sockets::bind(config.listen_port, 0).map_err(StartError::Bind)?;
        let now = SystemClock.now();
        let core = Core::new(
            Config {
                private_key: config.private_key,
                route: PacketRoute::Relay(config.addresses.clone()),
                mtu: config.mtu.into(),
            },
            config.limits,
            random_seed(),
            now,
        );
        let shared = DeviceInner::new(core, sockets, 0).map_err(StartError::Thread)?;
        let stack = SharedStack::new(Arc::clone(&shared), &config.addresses, config.mtu.into(), now);
        let end = StackEnd::new(Arc::clone(&stack));
        let thread = spawn(Arc::clone(&shared), end, &config.name)?;
        Ok(Self { name: config.name, shared, stack, thread: Some(thread) })
    }

    /// Returns a dialer, which opens and accepts TCP connections inside the VPN.
    #[must_use]
    pub fn dialer(&self) -> Dialer {
        Dialer::new(Arc::clone(&self.stack))
    }

    /// Serves the socket through which `wg` reads and sets the relay.
    pub fn serve(&self, socket: PathBuf) -> Result<uapi::UapiServer, uapi::ServeError> {
        uapi::UapiServer::start(socket, Arc::clone(&self.shared))
    }

    /// Reconciles the peers with the desired ones, and returns the changes.
    #[expect(clippy::must_use_candidate, reason = "callers only log the changes")]
    pub fn set_peers(&self, wanted: &PeerSet) -> Vec<PeerChange> {
        let changes = self.shared.core().set_peers(wanted, SystemClock.now());
        self.shared.wake();
        changes
    }

    /// Returns events of peers from now on, for one watcher. A watcher that is too slow misses events: [`Self::stats`] returns the
    /// current state.
    #[must_use]
    pub fn watch(&self) -> tokio::sync::mpsc::Receiver<VpnEvent> {
        self.shared.watch()
    }

    /// Returns the statistics of each peer, ordered by key.
    #[must_use]
    pub fn stats(&self) -> Vec<PeerStats> {
        self.shared.core().stats().collect()
    }

    /// Returns how much this relay and its siblings do for each other.
    #[must_use]
    pub fn sibling_stats(&self) -> SiblingStats {
        self.shared.core().sibling_stats(SystemClock.now())
    }

    /// Returns this end's public key, if its private key is known.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.shared.core().private_key().map(PrivateKey::public)
    }

    /// Whether the packet thread runs. If it has panicked, the relay forwards nothing any more.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the packet thread. The relay forwards nothing any more.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Returns the buffers that the kernel allocated for the outer sockets.
    #[must_use]
    pub fn kernel_buffers(&self) -> KernelBuffers {
        self.shared.sockets().kernel_buffers()
    }

    /// Returns the bytes of all buffers of connections inside the VPN, used or not.
    #[must_use]
    pub fn stream_buffer_bytes(&self) -> usize {
        self.stack.lock().buffer_bytes()
    }

    /// Returns the outer port.
    #[must_use]
    pub fn listen_port(&self) -> u16 {
        self.shared.sockets().port
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        stop(&self.shared, &mut self.thread);
        self.stack.close();
    }
}

impl DataPath for Relay {
    fn kind(&self) -> DataPathKind {
        DataPathKind::Relay
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_peers(&mut self, wanted: &PeerSet) -> Result<Vec<PeerChange>, DataPathError> {
        Ok(Relay::set_peers(self, wanted))
    }

    fn stats(&mut self) -> Result<Vec<PeerStats>, DataPathError> {
        Ok(Relay::stats(self))
    }
}
