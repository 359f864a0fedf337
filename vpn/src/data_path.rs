//! The interface of a data path, independent of whether the kernel or this process moves the packets.

use std::fmt;

use crate::device::{Device, DeviceConfig, StartError};
use crate::kernel::KernelDevice;
use crate::netlink::NetlinkError;
use crate::peers::{PeerChange, PeerSet};
use crate::stats::PeerStats;

/// The part of the system that moves the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPathKind {
    /// The kernel's WireGuard.
    Kernel,
    /// This process, with a TUN device.
    Userspace,
    /// This process, between peers and its own TCP/IP stack.
    Relay,
}

impl fmt::Display for DataPathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Userspace => "userspace",
            Self::Relay => "relay",
        })
    }
}

/// An operation on a data path failed.
#[derive(Debug, thiserror::Error)]
pub enum DataPathError {
    /// The userspace device could not be started.
    #[error("cannot start the userspace device")]
    Start(#[source] StartError),
    /// The kernel's device could not be read or changed.
    #[error("cannot use the kernel's WireGuard")]
    Kernel(#[source] NetlinkError),
}

/// A carrier of WireGuard packets. It is up until it is dropped.
pub trait DataPath: Send {
    /// Returns which part of the system moves the packets, for a status.
    fn kind(&self) -> DataPathKind;

    /// Returns the name of the interface or of the relay.
    fn name(&self) -> &str;

    /// Reconciles the peers with the desired ones, and returns the changes. The same peers again change nothing.
    fn set_peers(&mut self, wanted: &PeerSet) -> Result<Vec<PeerChange>, DataPathError>;

    /// Returns the statistics of each peer, ordered by key.
    fn stats(&mut self) -> Result<Vec<PeerStats>, DataPathError>;
}

impl DataPath for Device {
    fn kind(&self) -> DataPathKind {
        DataPathKind::Userspace
    }

    fn name(&self) -> &str {
        Device::name(self)
    }

    fn set_peers(&mut self, wanted: &PeerSet) -> Result<Vec<PeerChange>, DataPathError> {
        Ok(Device::set_peers(self, wanted))
    }

    fn stats(&mut self) -> Result<Vec<PeerStats>, DataPathError> {
        Ok(Device::stats(self))
    }
}

/// Brings up an interface: the kernel's if the kernel has WireGuard, otherwise a userspace device. `on_userspace` receives the
/// userspace device before it is boxed, to serve what the kernel serves by itself.
pub fn open(config: &DeviceConfig, on_userspace: impl FnOnce(&Device)) -> Result<Box<dyn DataPath>, DataPathError> {
    match KernelDevice::create(config) {
        Ok(device) => Ok(Box::new(device)),
        Err(error) if is_without_wireguard(&error) => {
            let device = Device::start(config.clone()).map_err(DataPathError::Start)?;
            on_userspace(&device);
            Ok(Box::new(device))
        }
        Err(error) => Err(DataPathError::Kernel(error)),
    }
}

fn is_without_wireguard(error: &NetlinkError) -> bool {
    let unsupported = rustix::io::Errno::OPNOTSUPP.raw_os_error();
    matches!(error, NetlinkError::Missing(_)) || error.errno() == Some(unsupported)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_kernel_without_wireguard_is_recognized_by_its_error() {
        let refused = |errno: rustix::io::Errno| NetlinkError::Refused {
            operation: "create a WireGuard interface",
            source: io::Error::from_raw_os_error(errno.raw_os_error()),
        };
        assert!(is_without_wireguard(&refused(rustix::io::Errno::OPNOTSUPP)));
        assert!(is_without_wireguard(&NetlinkError::Missing("wireguard".to_owned())));
        assert!(!is_without_wireguard(&refused(rustix::io::Errno::PERM)));
        assert!(!is_without_wireguard(&refused(rustix::io::Errno::EXIST)));
    }
}
