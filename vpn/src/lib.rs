//! A WireGuard data path.
//!
//! [`Core`] is the protocol without IO. Three data paths share one trait: a device on a TUN interface, a relay that needs no privilege, and
//! the kernel's own WireGuard if the kernel has it.

#[cfg(all(feature = "simulated-clock", not(debug_assertions)))]
compile_error!("simulated-clock stops the clock of all sessions; use it only in tests");

mod allowed_ips;
mod clock_reading;
pub mod conf;
mod core;
pub mod data_path;
pub mod datagram_stream;
pub mod device;
mod handshake_probe;
mod introduction;
pub mod io;
pub mod kernel;
mod key;
mod limits;
pub mod liveness;
pub mod netlink;
mod output;
mod packet;
mod peers;
pub mod relay;
mod stats;
pub mod uapi;

pub use crate::allowed_ips::AllowedIps;
pub use crate::clock_reading::ClockReading;
pub use crate::core::{Config, Core, PacketRoute};
pub use crate::data_path::{DataPath, DataPathError, DataPathKind};
pub use crate::device::{Device, DeviceConfig, StartError};
pub use crate::handshake_probe::HandshakeProbe;
pub use crate::introduction::{INTRODUCTION_PORT, IntroductionRequest, MOST_INTRODUCTIONS, PeerIntroduction};
pub use crate::io::{KernelBuffers, SystemClock};
pub use crate::key::{InvalidKey, KEY_LEN, PresharedKey, PrivateKey, PublicKey};
pub use crate::limits::CoreLimits;
pub use crate::output::{CoreOutput, DatagramPath, DatagramRun, HEADROOM, VpnEvent};
pub use crate::peers::{PeerChange, PeerConfig, PeerSet, PeerUpdate, plan_changes};
pub use crate::relay::{Relay, RelayConfig};
pub use crate::stats::{DropCounts, PeerStats, SiblingStats};
