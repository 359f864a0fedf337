//! The messages by which a relay introduces peers to each other, so that they can connect directly: UDP packets inside the tunnel.
//!
//! A peer sends requests. The relay responds to each with introductions, at least one message. All messages begin with their version. A reader
//! ignores other versions, and bytes after those that it knows. A relay that knows no introductions drops requests.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use crate::key::{KEY_LEN, PublicKey};

/// The port of both ends, inside the VPN.
pub const INTRODUCTION_PORT: u16 = 51822;
/// The most peers to which a relay introduces one peer.
pub const MOST_INTRODUCTIONS: usize = 32;
/// The most addresses of a request, and the most allowed IPs of an introduction.
const MOST_ADDRESSES: usize = 8;
/// The introductions of one message. With the longest lists, it is shorter than the smallest MTU of IPv6.
const PER_MESSAGE: usize = 2;
const VERSION: u8 = 1;

/// A peer's request: where it can be reached without the relay, and which peers it reaches so already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntroductionRequest {
    /// The UDP port of the peer's direct device.
    pub port: u16,
    /// The addresses of the peer in its own networks.
    pub addresses: Vec<IpAddr>,
    /// Peers to which this one wants to be introduced again, because packets between them no longer cross the relay.
    pub kept: BTreeSet<PublicKey>,
}

/// What a peer needs to connect to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIntroduction {
    /// The identity of the other peer.
    pub public_key: PublicKey,
    /// The other peer's addresses and ranges inside the VPN.
    pub allowed_ips: Vec<IpNet>,
    /// The endpoints at which the other peer may be reachable.
    pub candidates: Vec<SocketAddr>,
}

impl IntroductionRequest {
    /// Encodes the request. It leaves out what exceeds the limits.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.port.to_be_bytes());
        write_list(&mut bytes, self.addresses.iter().take(MOST_ADDRESSES), |address| octets(*address).to_vec());
        write_list(&mut bytes, self.kept.iter().take(MOST_INTRODUCTIONS), |key| key.0.to_vec());
        bytes
    }

    /// Parses a request. `None`: it is none, or one of an unknown version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = MessageReader::new(bytes)?;
        let port = reader.port()?;
        let addresses = reader.list(MOST_ADDRESSES, MessageReader::address)?;
        let kept = reader.list(MOST_INTRODUCTIONS, MessageReader::key)?.into_iter().collect();
        Some(Self { port, addresses, kept })
    }
}

impl PeerIntroduction {
    /// Encodes a response, in at least one message. It leaves out what exceeds the limits.
    #[must_use]
    pub fn encode(all: &[Self]) -> Vec<Vec<u8>> {
        let mut messages: Vec<Vec<u8>> = all.chunks(PER_MESSAGE).map(message).collect();
        if messages.is_empty() {
            messages.push(message(&[]));
        }
        messages
    }

    /// Parses a message of a response. `None`: it is none, or one of an unknown version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Vec<Self>> {
        MessageReader::new(bytes)?.list(PER_MESSAGE, |reader| {
            let public_key = reader.key()?;
            let allowed_ips = reader.list(MOST_ADDRESSES, MessageReader::network)?;
            // The observed endpoint is one more.
            let candidates = reader.list(MOST_ADDRESSES + 1, MessageReader::endpoint)?;
            Some(Self { public_key, allowed_ips, candidates })
        })
    }
}

fn message(introductions: &[PeerIntroduction]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    write_list(&mut bytes, introductions.iter(), |introduction| {
        let mut bytes = introduction.public_key.0.to_vec();
        write_list(&mut bytes, introduction.allowed_ips.iter().take(MOST_ADDRESSES), |network| {
            [&octets(network.addr())[..], &[network.prefix_len()]].concat()
        });
        write_list(&mut bytes, introduction.candidates.iter().take(MOST_ADDRESSES + 1), |endpoint| {
            [&octets(endpoint.ip())[..], &endpoint.port().to_be_bytes()].concat()
        });
        bytes
    });
    bytes
}

fn write_list<'a, T: 'a>(bytes: &mut Vec<u8>, items: impl Iterator<Item = &'a T>, encode: impl Fn(&T) -> Vec<u8>) {
    let items: Vec<Vec<u8>> = items.map(encode).collect();
    bytes.push(u8::try_from(items.len()).unwrap_or(u8::MAX));
    bytes.extend(items.concat());
}

/// Returns an address as 16 bytes. IPv4 addresses are mapped (RFC 4291, section 2.5.5.2).
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The rest of a message.
struct MessageReader<'a>(&'a [u8]);

impl<'a> MessageReader<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.strip_prefix(&[VERSION]).map(Self)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn port(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn key(&mut self) -> Option<PublicKey> {
        self.bytes::<KEY_LEN>().map(PublicKey)
    }

    fn address(&mut self) -> Option<IpAddr> {
        self.bytes().map(|octets: [u8; 16]| Ipv6Addr::from(octets).to_canonical())
    }

    fn network(&mut self) -> Option<IpNet> {
        let address = self.address()?;
        let [length] = self.bytes()?;
        IpNet::new(address, length).ok().map(|network| network.trunc())
    }

    fn endpoint(&mut self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.address()?, self.port()?))
    }

    fn list<T>(&mut self, most: usize, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let [count] = self.bytes()?;
        (usize::from(count) <= most).then_some(())?;
        (0..count).map(|_| read(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The smallest MTU of IPv6, without the headers of IPv6 and UDP.
    const ROOM: usize = 1280 - 48;

    fn key() -> impl Strategy<Value = PublicKey> {
        any::<[u8; KEY_LEN]>().prop_map(PublicKey)
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        any::<IpAddr>().prop_map(|address| address.to_canonical())
    }

    prop_compose! {
        fn introduction()(
            public_key in key(),
            networks in proptest::collection::vec((address(), 0..=32u8), 0..=MOST_ADDRESSES),
            candidates in proptest::collection::vec((address(), any::<u16>()), 0..=MOST_ADDRESSES + 1),
        ) -> PeerIntroduction {
            let network = |(address, length)| IpNet::new(address, length).unwrap().trunc();
            PeerIntroduction {
                public_key,
                allowed_ips: networks.into_iter().map(network).collect(),
                candidates: candidates.into_iter().map(SocketAddr::from).collect(),
            }
        }
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(
            port: u16,
            addresses in proptest::collection::vec(address(), 0..=MOST_ADDRESSES),
            kept in proptest::collection::btree_set(key(), 0..=MOST_INTRODUCTIONS),
        ) {
            let request = IntroductionRequest { port, addresses, kept };
            let bytes = request.encode();
            prop_assert!(bytes.len() <= ROOM);
            prop_assert_eq!(IntroductionRequest::parse(&bytes), Some(request));
        }

        #[test]
        fn a_response_is_read_as_it_was_written(all in proptest::collection::vec(introduction(), 0..7)) {
            let messages = PeerIntroduction::encode(&all);
            prop_assert!(!messages.is_empty() && messages.iter().all(|message| message.len() <= ROOM));
            let read: Vec<_> = messages.iter().flat_map(|message| PeerIntroduction::parse(message).unwrap()).collect();
            prop_assert_eq!(read, all);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let versioned = [&[VERSION], &bytes[..]].concat();
            for bytes in [bytes, versioned] {
                let _ = (IntroductionRequest::parse(&bytes), PeerIntroduction::parse(&bytes));
            }
        }
    }

    #[test]
    fn bytes_of_a_newer_release_are_ignored_and_another_version_is_no_message() {
        let request = IntroductionRequest { port: 7, ..IntroductionRequest::default() };
        let mut bytes = request.encode();
        bytes.extend([1, 2, 3]);
        assert_eq!(IntroductionRequest::parse(&bytes), Some(request));
        bytes[0] = 2;
        assert_eq!(IntroductionRequest::parse(&bytes), None);
        assert_eq!(IntroductionRequest::parse(&bytes[..1]), None);
    }

    #[test]
    fn longer_lists_are_no_message() {
        let too_many = [vec![VERSION, 0, 7, 9], vec![0; 9 * 16 + 1]].concat();
        assert_eq!(IntroductionRequest::parse(&too_many), None);
        let many = vec![IpAddr::from([192, 0, 2, 1]); 20];
        let request = IntroductionRequest { port: 7, addresses: many, ..IntroductionRequest::default() };
        assert_eq!(IntroductionRequest::parse(&request.encode()).unwrap().addresses.len(), MOST_ADDRESSES);
    }
}
