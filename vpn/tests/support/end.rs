//! The ends of a tunnel: their keys, addresses and files.

use std::io::Write;
use std::net::IpAddr;

use keelway_vpn::{PrivateKey, PublicKey};

/// Returns a private key by its number. It is the same in each run.
pub fn private_key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes([number; 32])
}

pub fn private_text(number: u8) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(private_key(number).as_bytes())
}

pub fn public_key(number: u8) -> PublicKey {
    private_key(number).public()
}

/// One end of a tunnel, with the content of its file.
#[derive(Clone)]
pub struct End {
    pub number: u8,
    pub port: u16,
    pub mtu: u16,
    pub peers: Vec<String>,
}

impl End {
    pub fn new(number: u8) -> Self {
        Self { number, port: 51820, mtu: 1420, peers: Vec::new() }
    }

    /// Adds a peer. `more` contains further lines of its section.
    pub fn peer(mut self, number: u8, allowed: &str, more: &str) -> Self {
        let key = public_key(number);
        self.peers.push(format!("[Peer]\nPublicKey = {key}\nAllowedIPs = {allowed}\n{more}\n"));
        self
    }

    pub fn address(&self) -> IpAddr {
        v4(self.number)
    }

    /// Returns the text for `wg setconf`.
    pub fn wg_config(&self) -> String {
        let head = format!("[Interface]\nPrivateKey = {}\nListenPort = {}\n", private_text(self.number), self.port);
        head + &self.peers.concat()
    }

    /// Returns the text for `keelway-vpn`.
    pub fn quick_config(&self) -> String {
        let number = self.number;
        let v6 = if self.mtu >= 1280 { format!(", fd32::{number}/64") } else { String::new() };
        let extra = format!("Address = 10.232.0.{number}/24{v6}\nMTU = {}\n", self.mtu);
        let config = self.wg_config();
        let (head, peers) = config
            .split_once("[Peer]")
            .map_or((config.as_str(), String::new()), |(head, peers)| (head, format!("[Peer]{peers}")));
        format!("{head}{extra}{peers}")
    }
}

pub fn v4(number: u8) -> IpAddr {
    IpAddr::from([10, 232, 0, number])
}

pub fn v6(number: u8) -> IpAddr {
    format!("fd32::{number}").parse().unwrap()
}

/// A configuration file that only its owner can read.
pub struct ConfigFile(tempfile::NamedTempFile);

impl ConfigFile {
    pub fn new(text: &str) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Self(file)
    }

    pub fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}
