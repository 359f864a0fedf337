//! Parses a client's request into data, and applies it to the peers of a device as a pure function.

use std::net::SocketAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::Errno;
use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::peers::{PeerConfig, PeerSet};

#[expect(clippy::option_option, reason = "an absent key and a key that is removed are different")]
/// A complete `set` operation. It is applied as a whole or not at all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SetRequest {
    /// `Some(None)`, written as all zeroes, removes the key.
    pub(crate) private_key: Option<Option<PrivateKey>>,
    pub(crate) listen_port: Option<u16>,
    pub(crate) fwmark: Option<u32>,
    pub(crate) replace_peers: bool,
    pub(crate) peers: Vec<PeerEdit>,
}

#[expect(clippy::option_option, reason = "an absent key and a key that is removed are different")]
/// The changes to one peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PeerEdit {
    pub(crate) public_key: PublicKey,
    pub(crate) remove: bool,
    pub(crate) update_only: bool,
    pub(crate) preshared_key: Option<Option<PresharedKey>>,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) persistent_keepalive: Option<u16>,
    pub(crate) replace_allowed_ips: bool,
    pub(crate) allowed_ips: Vec<AllowedIpEdit>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AllowedIpEdit {
    Add(IpNet),
    Remove(IpNet),
}

impl PeerEdit {
    fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            preshared_key: None,
            endpoint: None,
            persistent_keepalive: None,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

impl SetRequest {
    /// Parses the lines after `set=1`.
    pub(crate) fn parse<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Self, Errno> {
        let mut request = Self::default();
        for line in lines {
            let (key, value) = line.split_once('=').ok_or(Errno::Protocol)?;
            if key == "public_key" {
                let public_key = PublicKey::from_hex(value).map_err(|_| Errno::Invalid)?;
                request.peers.push(PeerEdit::new(public_key));
                continue;
            }
            match request.peers.last_mut() {
                Some(peer) => peer.set(key, value)?,
                None => request.set(key, value)?,
            }
        }
        Ok(request)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Errno> {
        match key {
            "private_key" => self.private_key = Some(private_key(value)?),
            "listen_port" => self.listen_port = Some(number(value)?),
            "fwmark" => self.fwmark = Some(fwmark(value)?),
            "replace_peers" => self.replace_peers = is_true(value)?,
            _ => return Err(Errno::Invalid),
        }
        Ok(())
    }

    /// Returns the peers that result from `peers`. `own` is the device's public key: a device is never its own peer.
    pub(crate) fn edit(&self, peers: &PeerSet, own: Option<PublicKey>) -> PeerSet {
        let mut edited = if self.replace_peers { PeerSet::default() } else { peers.clone() };
        for edit in self.peers.iter().filter(|edit| Some(edit.public_key) != own) {
            edit.apply(&mut edited);
        }
        if let Some(own) = own {
            edited.remove(&own);
        }
        edited
    }
}

impl PeerEdit {
    fn set(&mut self, key: &str, value: &str) -> Result<(), Errno> {
        match key {
            "remove" => self.remove = is_true(value)?,
            "update_only" => self.update_only = is_true(value)?,
            "preshared_key" => {
                self.preshared_key = Some(PresharedKey::from_hex(value).map_err(|_| Errno::Invalid)?);
            }
            "endpoint" => self.endpoint = Some(parsed(value)?),
            "persistent_keepalive_interval" => self.persistent_keepalive = Some(number(value)?),
            "replace_allowed_ips" => {
                self.replace_allowed_ips = is_true(value)?;
                self.allowed_ips.clear();
            }
            "allowed_ip" => self.allowed_ips.push(allowed_ip(value)?),
            "protocol_version" if value == "1" => {}
            _ => return Err(Errno::Invalid),
        }
        Ok(())
    }

    fn apply(&self, peers: &mut PeerSet) {
        if self.remove {
            peers.remove(&self.public_key);
            return;
        }
        let known = peers.get(&self.public_key).cloned();
        if self.update_only && known.is_none() {
            return;
        }
        let mut peer = known.unwrap_or_else(|| PeerConfig::new(self.public_key));
        if let Some(preshared_key) = &self.preshared_key {
            peer.preshared_key.clone_from(preshared_key);
        }
        peer.endpoint = self.endpoint.or(peer.endpoint);
        peer.persistent_keepalive = self.persistent_keepalive.unwrap_or(peer.persistent_keepalive);
        if self.replace_allowed_ips {
            peer.allowed_ips.clear();
        }
        for edit in &self.allowed_ips {
            match edit {
                AllowedIpEdit::Add(prefix) => peer.allowed_ips.insert(prefix.trunc()),
                AllowedIpEdit::Remove(prefix) => peer.allowed_ips.remove(&prefix.trunc()),
            };
        }
        peers.insert(peer);
    }
}

fn parsed<T: FromStr>(value: &str) -> Result<T, Errno> {
    value.parse().map_err(|_| Errno::Invalid)
}

fn number(value: &str) -> Result<u16, Errno> {
    parsed(value)
}

fn fwmark(value: &str) -> Result<u32, Errno> {
    match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).map_err(|_| Errno::Invalid),
        None => parsed(value),
    }
}

fn is_true(value: &str) -> Result<bool, Errno> {
    if value == "true" { Ok(true) } else { Err(Errno::Invalid) }
}

fn private_key(value: &str) -> Result<Option<PrivateKey>, Errno> {
    if value.len() == 64 && value.bytes().all(|digit| digit == b'0') {
        return Ok(None);
    }
    PrivateKey::from_hex(value).map(Some).map_err(|_| Errno::Invalid)
}

fn allowed_ip(value: &str) -> Result<AllowedIpEdit, Errno> {
    match value.strip_prefix('-') {
        Some(prefix) => parsed(prefix).map(AllowedIpEdit::Remove),
        None => parsed(value).map(AllowedIpEdit::Add),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(byte: u8) -> String {
        PublicKey([byte; 32]).to_hex()
    }

    fn parse(text: &str) -> Result<SetRequest, Errno> {
        SetRequest::parse(text.lines())
    }

    #[test]
    fn values_of_one_peer_do_not_apply_to_the_next() {
        let text = format!(
            "replace_peers=true\npublic_key={}\npreshared_key={}\nendpoint=192.0.2.1:1\npersistent_keepalive_interval=25\n\
             replace_allowed_ips=true\nallowed_ip=10.0.0.1/32\npublic_key={}\nallowed_ip=10.0.0.2/32\n",
            hex(1),
            hex(9),
            hex(2)
        );
        let peers = parse(&text).unwrap().edit(&PeerSet::default(), None);
        let first = peers.get(&PublicKey([1; 32])).unwrap();
        let second = peers.get(&PublicKey([2; 32])).unwrap();
        assert_eq!(first.persistent_keepalive, 25);
        assert!(first.preshared_key.is_some());
        assert_eq!((second.persistent_keepalive, second.endpoint, &second.preshared_key), (0, None, &None));
        assert_eq!(second.allowed_ips.len(), 1);
    }

    #[test]
    fn peers_are_replaced_added_to_updated_and_removed() {
        let before = parse(&format!("public_key={}\nallowed_ip=10.0.0.1/32\npublic_key={}\n", hex(1), hex(2)))
            .unwrap()
            .edit(&PeerSet::default(), None);
        let keys = |text: &str| -> Vec<u8> {
            parse(text).unwrap().edit(&before, None).iter().map(|peer| peer.public_key.0[0]).collect()
        };
        assert_eq!(keys(&format!("public_key={}\n", hex(3))), [1, 2, 3]);
        assert_eq!(keys(&format!("replace_peers=true\npublic_key={}\n", hex(3))), [3]);
        assert_eq!(keys(&format!("public_key={}\nremove=true\n", hex(1))), [2]);
        assert_eq!(keys(&format!("public_key={}\nupdate_only=true\n", hex(3))), [1, 2]);
        let removed = parse(&format!("public_key={}\nallowed_ip=-10.0.0.1/32\n", hex(1))).unwrap().edit(&before, None);
        assert!(removed.get(&PublicKey([1; 32])).unwrap().allowed_ips.is_empty());
    }

    #[test]
    fn a_device_is_not_its_own_peer() {
        let own = PublicKey([1; 32]);
        let request = parse(&format!("public_key={}\npublic_key={}\n", hex(1), hex(2))).unwrap();
        assert_eq!(request.edit(&PeerSet::default(), Some(own)).len(), 1);
    }

    #[test]
    fn a_request_with_an_invalid_line_is_refused() {
        for text in ["nonsense", "colour=red", "listen_port=70000", "replace_peers=false", "public_key=12"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("public_key={}\nallowed_ip=10.0.0.0/33\n", hex(1))).is_err());
        assert!(parse(&format!("public_key={}\nprotocol_version=2\n", hex(1))).is_err());
    }

    #[test]
    fn an_all_zero_private_key_removes_the_key() {
        assert_eq!(parse(&format!("private_key={}", "0".repeat(64))).unwrap().private_key, Some(None));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z_=0-9/.:\n-]{0,200}") {
            let _ = parse(&text);
        }
    }
}
