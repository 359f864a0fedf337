//! Access to the machine: its clock, UDP sockets and TUN devices.

mod clock;
mod offload_pauses;
mod tun;
mod udp;

pub use self::clock::SystemClock;
pub(crate) use self::tun::Tun;
pub use self::tun::TunError;
pub use self::udp::{BindError, KernelBuffers};
pub(crate) use self::udp::{ReceiveBuffers, Socket, Sockets};
