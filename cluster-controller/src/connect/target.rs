//! The target of a CONNECT.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The longest DNS name, in octets (RFC 1035, section 2.3.4).
const LONGEST_NAME: usize = 253;

/// The target of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TunnelTarget {
    /// A literal address.
    Address(SocketAddr),
    /// A name that is not resolved yet.
    Name {
        /// The DNS name.
        host: String,
        /// The TCP port.
        port: u16,
    },
}

/// A text that is not `HOST:PORT`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the target must be HOST:PORT")]
pub(crate) struct InvalidTarget;

impl FromStr for TunnelTarget {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let (host, port) = text.rsplit_once(':').ok_or(InvalidTarget)?;
        let is_digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_digits && *port != 0).ok_or(InvalidTarget)?;
        if let Some(inner) = host.strip_prefix('[') {
            let address = inner.strip_suffix(']').and_then(|inner| inner.parse().ok()).ok_or(InvalidTarget)?;
            return Ok(Self::Address(SocketAddr::new(IpAddr::V6(address), port)));
        }
        if let Ok(address) = host.parse() {
            return Ok(Self::Address(SocketAddr::new(IpAddr::V4(address), port)));
        }
        let is_name = !host.is_empty()
            && host.len() <= LONGEST_NAME
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        is_name.then(|| Self::Name { host: host.to_owned(), port }).ok_or(InvalidTarget)
    }
}

impl fmt::Display for TunnelTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_and_names_are_distinguished() {
        let address = |text: &str| Ok(TunnelTarget::Address(text.parse().unwrap()));
        assert_eq!("100.80.0.7:10250".parse(), address("100.80.0.7:10250"));
        assert_eq!("[fd00::7]:443".parse(), address("[fd00::7]:443"));
        let name = TunnelTarget::Name { host: "hooks.example.com".to_owned(), port: 443 };
        assert_eq!("hooks.example.com:443".parse(), Ok(name));
    }

    #[test]
    fn a_target_that_is_neither_an_address_nor_a_name_is_refused() {
        let long = format!("{}:443", "a".repeat(254));
        for text in [
            "",
            ":",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "a:+1",
            "fd00::7:443",
            "[1.2.3.4]:1",
            "[::1",
            "a/b:1",
            "a b:1",
            &long,
        ] {
            assert_eq!(text.parse::<TunnelTarget>(), Err(InvalidTarget), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_target_is_read_back(address: IpAddr, port in 1..=u16::MAX) {
            let target = TunnelTarget::Address(SocketAddr::new(address, port));
            prop_assert_eq!(target.to_string().parse::<TunnelTarget>(), Ok(target));
        }

        #[test]
        fn nothing_panics(text in ".{0,40}") {
            let _ = text.parse::<TunnelTarget>();
        }
    }
}
