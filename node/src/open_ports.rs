//! The ports of a worker that its owner opens to tunnels and pods.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The word for all ports.
const ALL: &str = "all";

/// The open ports, in addition to those that the cluster needs. The default opens no port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum OpenPorts {
    /// All ports.
    All,
    /// These ports, of TCP and of UDP.
    Only(BTreeSet<u16>),
}

/// The text is no list of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a port; must be `{ALL}`, or ports from 1 to 65535 that are separated by commas")]
pub struct OpenPortsFault(String);

impl OpenPorts {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for OpenPorts {
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

impl FromStr for OpenPorts {
    type Err = OpenPortsFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == ALL {
            return Ok(Self::All);
        }
        let port =
            |word: &str| word.trim().parse().ok().filter(|port| *port > 0).ok_or(OpenPortsFault(word.to_owned()));
        let words = text.split(',').filter(|_| !text.is_empty());
        Ok(Self::Only(words.map(port).collect::<Result<_, _>>()?))
    }
}

impl fmt::Display for OpenPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str(ALL),
            Self::Only(ports) => {
                let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                f.write_str(&ports.join(","))
            }
        }
    }
}

impl TryFrom<String> for OpenPorts {
    type Error = OpenPortsFault;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<OpenPorts> for String {
    fn from(ports: OpenPorts) -> Self {
        ports.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_written_alike() {
        for text in ["", "all", "22", "22,443"] {
            assert_eq!(text.parse::<OpenPorts>().unwrap().to_string(), text);
        }
        assert_eq!("443, 22".parse::<OpenPorts>().unwrap().to_string(), "22,443");
        for text in ["0", "22,", "ssh", "65536", "22 443", "ALL"] {
            assert!(text.parse::<OpenPorts>().is_err(), "{text}");
        }
    }
}
