//! The cross-platform userspace API, through which `wg` reads and sets a device.
//!
//! <https://www.wireguard.com/xplatform/> defines the format.

mod request;
mod response;
mod server;

pub use self::server::{ServeError, UapiServer, default_socket};

/// The errors of the API, which the response reports as errno numbers.
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
