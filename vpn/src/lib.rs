//! A WireGuard data path.
//!
//! [`Core`] is the protocol without IO. Around it stand a device on a TUN interface, a relay that needs no privilege, and the
//! kernel's own WireGuard where there is one, all behind one trait.

#[cfg(all(feature = "simulated-clock", not(debug_assertions)))]
compile_error!("simulated-clock stops the clock of all sessions: it is for tests alone");

mod allowed_ips;
pub mod conf;
mod core;
pub mod data_path;
pub mod device;
pub mod durable;
pub mod error;
pub mod io;
pub mod kernel;
mod key;
mod limits;
pub mod liveness;
mod moment;
pub mod netlink;
mod output;
mod packet;
mod peers;
pub mod relay;
mod stats;
pub mod uapi;

pub use crate::allowed_ips::AllowedIps;
pub use crate::core::{Config, Core, Route};
pub use crate::data_path::{DataPath, DataPathError, DataPathKind};
pub use crate::device::{Device, DeviceConfig, StartError};
pub use crate::io::Clock;
pub use crate::key::{InvalidKey, KEY_LEN, PresharedKey, PrivateKey, PublicKey};
pub use crate::limits::Limits;
pub use crate::moment::Moment;
pub use crate::output::{DatagramRun, Event, HEADROOM, Output, Path};
pub use crate::peers::{Change, PeerConfig, PeerUpdate, Peers, plan_changes};
pub use crate::relay::{Relay, RelayConfig};
pub use crate::stats::{DropCounts, PeerStats};
