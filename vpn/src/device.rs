//! A running data path: one thread moves packets between the outer sockets and the inner end.

mod pump;
mod shared;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use self::pump::Pump;
pub(crate) use self::pump::TunnelInterior;
pub(crate) use self::shared::DeviceInner;
use crate::core::{Config, Core, PacketRoute};
use crate::io::{BindError, Sockets, SystemClock, Tun, TunError};
use crate::key::PrivateKey;
use crate::limits::CoreLimits;
use crate::output::VpnEvent;
use crate::peers::{PeerChange, PeerSet};
use crate::stats::PeerStats;
use crate::uapi;

/// A data path could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The TUN device could not be created or read.
    #[error("cannot bring up the TUN device")]
    Tun(#[source] TunError),
    /// The port could not be opened.
    #[error("cannot open the outer sockets")]
    Bind(#[source] BindError),
    /// The thread, or the file descriptor that wakes it, could not be created.
    #[error("cannot start the packet thread")]
    Thread(#[source] io::Error),
}

/// The configuration of a device.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// The interface's name. `%d` in it stands for a free number.
    pub name: String,
    /// This end's private key, if it is known already.
    pub private_key: Option<PrivateKey>,
    /// The outer port, 0 for any.
    pub listen_port: u16,
    /// The mark on outer packets, 0 for none.
    pub fwmark: u32,
    /// The largest inner packet, in bytes, at the start. Afterwards the device follows the interface's MTU.
    pub mtu: u16,
    /// Segmentation offload on the TUN device. It is off only to measure its effect.
    pub offload: bool,
    /// The bounds of the core.
    pub limits: CoreLimits,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            name: "wg%d".to_owned(),
            private_key: None,
            listen_port: 0,
            fwmark: 0,
            mtu: 1420,
            offload: true,
            limits: CoreLimits::default(),
        }
    }
}

/// A WireGuard interface in this process. It is up until it is dropped.
pub struct Device {
    shared: Arc<DeviceInner>,
    name: String,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Creates the interface and starts moving packets. Needs CAP_NET_ADMIN.
    pub fn start(config: DeviceConfig) -> Result<Self, StartError> {
        let tun = Tun::create(&config.name, config.mtu, config.offload).map_err(StartError::Tun)?;
        let name = tun.name().map_err(StartError::Tun)?;
        let sockets = Sockets::bind(config.listen_port, config.fwmark).map_err(StartError::Bind)?;
        let core = Core::new(
            Config { private_key: config.private_key, route: PacketRoute::Local, mtu: config.mtu.into() },
            config.limits,
            random_seed(),
            SystemClock.now(),
        );
        let shared = DeviceInner::new(core, sockets, config.fwmark).map_err(StartError::Thread)?;
        let thread = spawn(Arc::clone(&shared), tun, &name)?;
        Ok(Self { shared, name, thread: Some(thread) })
    }

    /// Returns the interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Serves the socket through which `wg` reads and sets the device.
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

    /// Returns the outer port.
    #[must_use]
    pub fn listen_port(&self) -> u16 {
        self.shared.sockets().port
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        stop(&self.shared, &mut self.thread);
    }
}

/// Starts the one thread of a data path.
pub(crate) fn spawn(
    shared: Arc<DeviceInner>,
    inside: impl TunnelInterior + 'static,
    name: &str,
) -> Result<JoinHandle<()>, StartError> {
    std::thread::Builder::new()
        .name(format!("vpn-{name}"))
        .spawn(move || Pump::new(shared, inside).run())
        .map_err(StartError::Thread)
}

/// Stops the thread and waits for its end.
pub(crate) fn stop(shared: &DeviceInner, thread: &mut Option<JoinHandle<()>>) {
    shared.stop();
    if let Some(thread) = thread.take()
        && thread.join().is_err()
    {
        tracing::error!("the packet thread panicked");
    }
}

pub(crate) fn random_seed() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    // Index bits need not be secret. They only need to differ after a restart.
    let bits = RandomState::new().hash_one(());
    u32::try_from(bits >> 32).unwrap_or_default()
}
