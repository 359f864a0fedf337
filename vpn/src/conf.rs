//! Configuration files in the format of wg-quick(8).

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use ipnet::IpNet;

use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::peers::{PeerConfig, PeerSet};

/// The content of a configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileConfig {
    /// This end's private key.
    pub private_key: Option<PrivateKey>,
    /// The outer port, 0 for any.
    pub listen_port: u16,
    /// The mark on outer packets, 0 for none.
    pub fwmark: u32,
    /// This end's inner addresses.
    pub addresses: Vec<IpNet>,
    /// The largest inner packet, in bytes.
    pub mtu: Option<u16>,
    /// Whether allowed IPs become routes (`Table = auto`, the default) or not (`off`).
    pub routes: bool,
    /// The peers of the file.
    pub peers: PeerSet,
}

/// A line that the parser does not accept.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    /// The number of the line, counted from one.
    pub line: usize,
    /// What is wrong with the line. It never contains a value, because a value may be a key.
    pub problem: String,
}

enum Section {
    None,
    Interface,
    Peer(Box<PeerConfig>, bool),
}

/// Parses a file. It resolves names of endpoints, and refuses options that wg-quick runs as a shell command.
pub fn parse(text: &str) -> Result<FileConfig, ParseError> {
    let mut config = FileConfig { routes: true, ..FileConfig::default() };
    let mut section = Section::None;
    for (number, line) in (1..).zip(text.lines()) {
        let fail = |problem: String| ParseError { line: number, problem };
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        match line.to_ascii_lowercase().as_str() {
            "[interface]" => finish(std::mem::replace(&mut section, Section::Interface), &mut config, number)?,
            "[peer]" => {
                let next = Section::Peer(Box::new(PeerConfig::new(PublicKey([0; 32]))), false);
                finish(std::mem::replace(&mut section, next), &mut config, number)?;
            }
            _ => {
                let (key, value) =
                    line.split_once('=').ok_or_else(|| fail("must be a section or KEY = VALUE".to_owned()))?;
                let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
                match &mut section {
                    Section::None => Err("a key must follow a section".to_owned()),
                    Section::Interface => set_interface(&mut config, &key, value),
                    Section::Peer(peer, named) => set_peer(peer, named, &key, value),
                }
                .map_err(fail)?;
            }
        }
    }
    finish(section, &mut config, text.lines().count())?;
    Ok(config)
}

fn finish(section: Section, config: &mut FileConfig, line: usize) -> Result<(), ParseError> {
    match section {
        Section::Peer(_, false) => Err(ParseError { line, problem: "the peer above has no PublicKey".to_owned() }),
        Section::Peer(peer, true) => {
            config.peers.insert(*peer);
            Ok(())
        }
        Section::None | Section::Interface => Ok(()),
    }
}

fn set_interface(config: &mut FileConfig, key: &str, value: &str) -> Result<(), String> {
    match key {
        "privatekey" => config.private_key = Some(parsed(value, "a key in base64")?),
        "listenport" => config.listen_port = parsed(value, "a port number")?,
        "fwmark" => config.fwmark = fwmark(value)?,
        "address" => config.addresses.extend(networks(value)?),
        "mtu" => config.mtu = Some(parsed(value, "a number of bytes")?),
        "table" => {
            config.routes = match value {
                "auto" => true,
                "off" => false,
                _ => return Err("Table must be auto or off".to_owned()),
            }
        }
        "dns" | "preup" | "postup" | "predown" | "postdown" | "saveconfig" => {
            return Err(format!("{key} is an option of wg-quick and is not supported; remove it"));
        }
        _ => return Err(format!("unknown key {key} in [Interface]")),
    }
    Ok(())
}

fn set_peer(peer: &mut PeerConfig, named: &mut bool, key: &str, value: &str) -> Result<(), String> {
    match key {
        "publickey" => {
            peer.public_key = parsed(value, "a key in base64")?;
            *named = true;
        }
        "presharedkey" => {
            peer.preshared_key = PresharedKey::from_base64(value).map_err(|_| "must be a key in base64".to_owned())?;
        }
        "allowedips" => peer.allowed_ips.extend(networks(value)?.iter().map(IpNet::trunc)),
        "endpoint" => peer.endpoint = Some(endpoint(value)?),
        "persistentkeepalive" => {
            peer.persistent_keepalive = if value == "off" { 0 } else { parsed(value, "a number of seconds")? };
        }
        _ => return Err(format!("unknown key {key} in [Peer]")),
    }
    Ok(())
}

fn parsed<T: FromStr>(value: &str, what: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("must be {what}"))
}

fn fwmark(value: &str) -> Result<u32, String> {
    match value.strip_prefix("0x") {
        _ if value == "off" => Ok(0),
        Some(digits) => u32::from_str_radix(digits, 16).map_err(|_| "must be a firewall mark".to_owned()),
        None => parsed(value, "a firewall mark"),
    }
}

/// Parses networks separated by commas. An address without a length is a network of one address.
fn networks(value: &str) -> Result<Vec<IpNet>, String> {
    let texts = value.split(',').map(str::trim).filter(|text| !text.is_empty());
    texts
        .map(|text| {
            let network = text.parse().or_else(|_| text.parse().map(|address: std::net::IpAddr| address.into()));
            network.map_err(|_| format!("{text} is not a valid network"))
        })
        .collect()
}

fn endpoint(value: &str) -> Result<SocketAddr, String> {
    let mut addresses = value.to_socket_addrs().map_err(|error| format!("{value} is not a valid endpoint: {error}"))?;
    addresses.next().ok_or_else(|| format!("{value} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
[Interface]
PrivateKey = wN0b2DfTtwB14g2Tt5SGe2BZYeBo0a1GLSXJCoEOyHo=
ListenPort = 51820 # the usual one
Address = 10.0.0.1/24, fd00::1/64
MTU = 1380

[Peer]
PublicKey = ooPHGddg5ghUsg0iks4pMrtrImczzFbmLZN17p1RFSQ=
AllowedIPs = 10.0.0.2/32
AllowedIPs = fd00::2
Endpoint = [2001:db8::1]:51820
PersistentKeepalive = 25
";

    #[test]
    fn a_file_of_wg_quick_is_read() {
        let config = parse(FILE).unwrap();
        assert_eq!((config.listen_port, config.mtu, config.routes), (51820, Some(1380), true));
        assert_eq!(config.addresses.len(), 2);
        let peer = config.peers.iter().next().unwrap();
        assert_eq!(peer.allowed_ips.len(), 2);
        assert_eq!(peer.endpoint, Some("[2001:db8::1]:51820".parse().unwrap()));
        assert_eq!(peer.persistent_keepalive, 25);
    }

    #[test]
    fn a_wrong_line_is_named_and_no_value_is_shown() {
        for (text, line) in [
            ("[Interface]\nPrivateKey = secret\n", 2),
            ("ListenPort = 1\n", 1),
            ("[Interface]\nPostUp = true\n", 2),
            ("[Peer]\nAllowedIPs = 10.0.0.0/8\n", 2),
            ("[Peer]\nColour = red\n", 2),
            ("[Interface]\nnonsense\n", 2),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
