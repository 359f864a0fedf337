//! Netlink requests to the kernel: interfaces, addresses, routes and its own WireGuard.

pub mod bridge_port;
pub mod default_route;
#[cfg(test)]
pub(crate) mod encoding;
pub(crate) mod generic;
pub mod interface;
pub mod routing;
mod socket;

pub use self::socket::NetlinkError;
pub(crate) use self::socket::{NetlinkSocket, exchange};
