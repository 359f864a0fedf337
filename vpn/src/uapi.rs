//! The cross-platform userspace API, by which `wg` sees and sets a device.
//!
//! The format is the one of <https://www.wireguard.com/xplatform/>.

mod request;
mod response;
mod server;

pub use self::server::{ServeError, UapiServer, default_socket};

/// Errors have the number of an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errno {
    Invalid,
    AddressInUse,
    Protocol,
}

impl Errno {
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Invalid => rustix::io::Errno::INVAL.raw_os_error(),
            Self::AddressInUse => rustix::io::Errno::ADDRINUSE.raw_os_error(),
            Self::Protocol => rustix::io::Errno::PROTO.raw_os_error(),
        }
    }
}
