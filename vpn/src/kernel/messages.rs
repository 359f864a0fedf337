//! Encodes changes as messages and decodes answers into statistics. Pure, and tested against the encoding of `linux/wireguard.h`.

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute, WireguardCmd,
    WireguardDeviceFlags, WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
};

use crate::device::DeviceConfig;
use crate::key::{KEY_LEN, PresharedKey, PublicKey};
use crate::peers::{PeerChange, PeerConfig, PeerUpdate};
use crate::stats::PeerStats;

/// The most prefixes in one message. A nested attribute's length has 16 bits, and a prefix needs 44 bytes at most.
const PREFIXES_PER_MESSAGE: usize = 512;
/// The most peers in one message. Without its prefixes, a peer needs 136 bytes at most.
const PEERS_PER_MESSAGE: usize = 64;

/// Builds the request for a device.
pub(super) fn get(name: &str) -> WireguardMessage {
    WireguardMessage { cmd: WireguardCmd::GetDevice, attributes: vec![WireguardAttribute::IfName(name.to_owned())] }
}

/// Builds the messages that configure a new interface, without peers.
pub(super) fn configure(name: &str, config: &DeviceConfig) -> Vec<WireguardMessage> {
    let mut attributes = vec![
        WireguardAttribute::IfName(name.to_owned()),
        WireguardAttribute::Flags(WireguardDeviceFlags::ReplacePeers),
        WireguardAttribute::ListenPort(config.listen_port),
        WireguardAttribute::Fwmark(config.fwmark),
    ];
    if let Some(key) = &config.private_key {
        attributes.push(WireguardAttribute::PrivateKey(*key.as_bytes()));
    }
    vec![WireguardMessage { cmd: WireguardCmd::SetDevice, attributes }]
}

/// Builds the messages that apply the changes, as many as their sizes require.
pub(super) fn change(name: &str, changes: &[PeerChange]) -> Vec<WireguardMessage> {
    let mut messages = Vec::new();
    let mut peers = Vec::new();
    let mut prefixes = 0;
    for part in changes.iter().flat_map(peer_parts) {
        let more = prefixes_of(&part);
        if peers.len() == PEERS_PER_MESSAGE || prefixes + more > PREFIXES_PER_MESSAGE {
            messages.push(set(name, std::mem::take(&mut peers)));
            prefixes = 0;
        }
        prefixes += more;
        peers.push(part);
    }
    if !peers.is_empty() {
        messages.push(set(name, peers));
    }
    messages
}

fn set(name: &str, peers: Vec<WireguardPeer>) -> WireguardMessage {
    WireguardMessage {
        cmd: WireguardCmd::SetDevice,
        attributes: vec![WireguardAttribute::IfName(name.to_owned()), WireguardAttribute::Peers(peers)],
    }
}

fn prefixes_of(peer: &WireguardPeer) -> usize {
    let lists = peer
        .0
        .iter()
        .map(|attribute| if let WireguardPeerAttribute::AllowedIps(prefixes) = attribute { prefixes.len() } else { 0 });
    lists.sum()
}

/// Encodes one change as one peer attribute, or as several if it has too many prefixes for one.
fn peer_parts(change: &PeerChange) -> Vec<WireguardPeer> {
    match change {
        PeerChange::Remove(key) => vec![WireguardPeer(vec![
            WireguardPeerAttribute::PublicKey(key.0),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe),
        ])],
        PeerChange::Add(peer) => {
            let prefixes: Vec<_> = peer.allowed_ips.iter().copied().collect();
            with_prefixes(peer.public_key, added(peer), &prefixes)
        }
        PeerChange::Update(update) => {
            let prefixes: Vec<_> = update.allowed_ips.iter().flatten().copied().collect();
            with_prefixes(update.public_key, updated(update), &prefixes)
        }
    }
}

fn added(peer: &PeerConfig) -> Vec<WireguardPeerAttribute> {
    let mut attributes = vec![
        WireguardPeerAttribute::PublicKey(peer.public_key.0),
        WireguardPeerAttribute::Flags(WireguardPeerFlags::ReplaceAllowedIps),
        WireguardPeerAttribute::PersistentKeepalive(peer.persistent_keepalive),
    ];
    if let Some(key) = &peer.preshared_key {
        attributes.push(WireguardPeerAttribute::PresharedKey(*key.as_bytes()));
    }
    attributes.extend(peer.endpoint.map(WireguardPeerAttribute::Endpoint));
    attributes
}

fn updated(update: &PeerUpdate) -> Vec<WireguardPeerAttribute> {
    let mut flags = WireguardPeerFlags::UpdateOnly;
    if update.allowed_ips.is_some() {
        flags |= WireguardPeerFlags::ReplaceAllowedIps;
    }
    let mut attributes =
        vec![WireguardPeerAttribute::PublicKey(update.public_key.0), WireguardPeerAttribute::Flags(flags)];
    if let Some(key) = &update.preshared_key {
        // All zeroes remove a preshared key.
        let bytes = key.as_ref().map_or([0; KEY_LEN], |key| *PresharedKey::as_bytes(key));
        attributes.push(WireguardPeerAttribute::PresharedKey(bytes));
    }
    attributes.extend(update.endpoint.map(WireguardPeerAttribute::Endpoint));
    attributes.extend(update.persistent_keepalive.map(WireguardPeerAttribute::PersistentKeepalive));
    attributes
}

fn with_prefixes(key: PublicKey, mut base: Vec<WireguardPeerAttribute>, prefixes: &[IpNet]) -> Vec<WireguardPeer> {
    let mut chunks = prefixes.chunks(PREFIXES_PER_MESSAGE);
    if let Some(first) = chunks.next() {
        base.push(allowed_ips(first));
    }
    let rest = chunks.map(|chunk| {
        WireguardPeer(vec![
            WireguardPeerAttribute::PublicKey(key.0),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::UpdateOnly),
            allowed_ips(chunk),
        ])
    });
    std::iter::once(WireguardPeer(base)).chain(rest).collect()
}

fn allowed_ips(prefixes: &[IpNet]) -> WireguardPeerAttribute {
    let encode = |prefix: &IpNet| {
        let family = match prefix {
            IpNet::V4(_) => WireguardAddressFamily::Ipv4,
            IpNet::V6(_) => WireguardAddressFamily::Ipv6,
        };
        WireguardAllowedIp(vec![
            WireguardAllowedIpAttr::Family(family),
            WireguardAllowedIpAttr::IpAddr(prefix.network()),
            WireguardAllowedIpAttr::Cidr(prefix.prefix_len()),
        ])
    };
    WireguardPeerAttribute::AllowedIps(prefixes.iter().map(encode).collect())
}

/// Returns the statistics of all peers, ordered by key. A peer with many prefixes spans several messages and counts once.
pub(super) fn stats(answers: &[WireguardMessage]) -> Vec<PeerStats> {
    let mut by_key = BTreeMap::new();
    for attribute in answers.iter().flat_map(|answer| &answer.attributes) {
        let WireguardAttribute::Peers(peers) = attribute else {
            continue;
        };
        for peer in peers {
            let Some(key) = public_key(peer) else {
                continue;
            };
            let entry = by_key.entry(key).or_insert_with(|| PeerStats {
                public_key: key,
                endpoint: None,
                last_handshake: None,
                last_received: None,
                received_bytes: 0,
                sent_bytes: 0,
                dropped_packets: 0,
            });
            for attribute in &peer.0 {
                note(attribute, entry);
            }
        }
    }
    by_key.into_values().collect()
}

fn public_key(peer: &WireguardPeer) -> Option<PublicKey> {
    peer.0.iter().find_map(|attribute| {
        if let WireguardPeerAttribute::PublicKey(key) = attribute { Some(PublicKey(*key)) } else { None }
    })
}

fn note(attribute: &WireguardPeerAttribute, stats: &mut PeerStats) {
    if let WireguardPeerAttribute::Endpoint(endpoint) = attribute {
        stats.endpoint = Some(*endpoint);
    } else if let WireguardPeerAttribute::RxBytes(bytes) = attribute {
        stats.received_bytes = *bytes;
    } else if let WireguardPeerAttribute::TxBytes(bytes) = attribute {
        stats.sent_bytes = *bytes;
    } else if let WireguardPeerAttribute::LastHandshake(time) = attribute {
        let seconds = u64::try_from(time.seconds).unwrap_or_default();
        let nanoseconds = u32::try_from(time.nano_seconds).unwrap_or_default();
        stats.last_handshake = (seconds > 0).then(|| Duration::new(seconds, nanoseconds));
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{Emitable, NetlinkMessage, NetlinkPayload};
    use netlink_packet_generic::GenlMessage;

    use super::*;
    use crate::key::PrivateKey;
    use crate::netlink::encoding::{NESTED, attribute};

    fn emit(message: &WireguardMessage) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    /// Every attribute of a set, by its number in `linux/wireguard.h`.
    #[test]
    fn an_added_peer_is_encoded_as_in_the_header() {
        let mut peer = PeerConfig::new(PublicKey([3; 32]));
        peer.preshared_key = PresharedKey::from_bytes([4; 32]);
        peer.endpoint = Some("192.0.2.1:51820".parse().unwrap());
        peer.persistent_keepalive = 25;
        peer.allowed_ips = ["10.0.0.0/24", "fd00::1/128"].map(|prefix| prefix.parse().unwrap()).into();
        let messages = change("kw0", &[PeerChange::Add(peer)]);

        let endpoint = [&2u16.to_ne_bytes()[..], &51820u16.to_be_bytes(), &[192, 0, 2, 1], &[0; 8]].concat();
        let v4 = [attribute(1, &2u16.to_ne_bytes()), attribute(2, &[10, 0, 0, 0]), attribute(3, &[24])].concat();
        let v6_address = "fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let v6 = [attribute(1, &10u16.to_ne_bytes()), attribute(2, &v6_address), attribute(3, &[128])].concat();
        let allowed_ips = [attribute(NESTED, &v4), attribute(NESTED, &v6)].concat();
        let peer = [
            attribute(1, &[3; 32]),
            attribute(3, &2u32.to_ne_bytes()),
            attribute(5, &25u16.to_ne_bytes()),
            attribute(2, &[4; 32]),
            attribute(4, &endpoint),
            attribute(9 | NESTED, &allowed_ips),
        ]
        .concat();
        let expected = [attribute(2, b"kw0\0"), attribute(8 | NESTED, &attribute(NESTED, &peer))].concat();
        assert_eq!(messages.iter().map(emit).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_device_is_configured_as_in_the_header() {
        let config = DeviceConfig {
            name: "kw0".to_owned(),
            private_key: Some(PrivateKey::from_bytes([0x40; 32])),
            listen_port: 51820,
            fwmark: 7,
            ..DeviceConfig::default()
        };
        let expected = [
            attribute(2, b"kw0\0"),
            attribute(5, &1u32.to_ne_bytes()),
            attribute(6, &51820u16.to_ne_bytes()),
            attribute(7, &7u32.to_ne_bytes()),
            attribute(3, &[0x40; 32]),
        ]
        .concat();
        assert_eq!(configure("kw0", &config).iter().map(emit).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_removal_and_an_update_name_only_what_they_change() {
        let update = PeerUpdate {
            public_key: PublicKey([2; 32]),
            preshared_key: Some(None),
            endpoint: None,
            persistent_keepalive: None,
            allowed_ips: None,
            is_sibling: None,
        };
        let messages = change("kw0", &[PeerChange::Remove(PublicKey([1; 32])), PeerChange::Update(update)]);
        let removal = [attribute(1, &[1; 32]), attribute(3, &1u32.to_ne_bytes())].concat();
        let update = [attribute(1, &[2; 32]), attribute(3, &4u32.to_ne_bytes()), attribute(2, &[0; 32])].concat();
        let peers = [attribute(NESTED, &removal), attribute(NESTED, &update)].concat();
        let expected = [attribute(2, b"kw0\0"), attribute(8 | NESTED, &peers)].concat();
        assert_eq!(messages.iter().map(emit).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn no_attribute_outgrows_its_sixteen_bits_and_no_prefix_is_lost() {
        let mut peer = PeerConfig::new(PublicKey([1; 32]));
        peer.allowed_ips =
            (0..5000u32).map(|number| IpNet::from(std::net::IpAddr::from(number.to_be_bytes()))).collect();
        let many = (0..=255u8).map(|number| PeerChange::Add(PeerConfig::new(PublicKey([number; 32]))));
        let changes: Vec<_> = std::iter::once(PeerChange::Add(peer)).chain(many).collect();
        let messages = change("kw0", &changes);
        assert!(messages.iter().all(|message| message.buffer_len() < 1 << 16));
        let peers = || {
            messages
                .iter()
                .flat_map(|message| &message.attributes)
                .filter_map(
                    |attribute| {
                        if let WireguardAttribute::Peers(peers) = attribute { Some(peers) } else { None }
                    },
                )
                .flatten()
        };
        assert_eq!(peers().map(prefixes_of).sum::<usize>(), 5000);
        // A later part must not replace the prefixes of the first.
        let replacing = peers()
            .filter(|peer| public_key(peer) == Some(PublicKey([1; 32])))
            .filter(|peer| peer.0.contains(&WireguardPeerAttribute::Flags(WireguardPeerFlags::ReplaceAllowedIps)));
        assert_eq!(replacing.count(), 2, "the large one's first part, and the small one of the same name");
    }

    #[test]
    fn a_peer_in_two_messages_counts_once() {
        let part = |attributes: Vec<WireguardPeerAttribute>| WireguardMessage {
            cmd: WireguardCmd::SetDevice,
            attributes: vec![WireguardAttribute::Peers(vec![WireguardPeer(attributes)])],
        };
        let key = WireguardPeerAttribute::PublicKey([1; 32]);
        let answers = [
            part(vec![key.clone(), WireguardPeerAttribute::RxBytes(5), WireguardPeerAttribute::TxBytes(6)]),
            part(vec![key, WireguardPeerAttribute::AllowedIps(Vec::new())]),
        ];
        let stats = stats(&answers);
        assert_eq!(stats.len(), 1);
        assert_eq!((stats[0].received_bytes, stats[0].sent_bytes), (5, 6));
    }

    /// `nlmsghdr` and `genlmsghdr` of `linux/netlink.h` and `linux/genetlink.h` around commands of `linux/wireguard.h`.
    fn message(command: u8, attributes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(20 + attributes.len()).unwrap();
        let header = [&length.to_ne_bytes()[..], &FAMILY.to_ne_bytes(), &[0; 10]].concat();
        [&header, &[command, 1, 0, 0][..], attributes].concat()
    }

    const FAMILY: u16 = 29;

    #[test]
    fn a_request_has_the_headers_that_the_kernel_reads() {
        for (request, command) in [(get("kw0"), 0), (set("kw0", Vec::new()), 1)] {
            let attributes = emit(&request);
            let mut generic = GenlMessage::from_payload(request);
            generic.set_resolved_family_id(FAMILY);
            let mut whole = NetlinkMessage::from(generic);
            whole.finalize();
            let mut bytes = vec![0; whole.buffer_len()];
            whole.serialize(&mut bytes);
            assert_eq!(bytes, message(command, &attributes));
        }
    }

    /// An answer to `WG_CMD_GET_DEVICE`, byte by byte, with attributes that this code does not know.
    #[test]
    fn a_response_is_read_as_in_the_header() {
        let address = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let endpoint = [&10u16.to_ne_bytes()[..], &51820u16.to_be_bytes(), &[0; 4], &address, &[0; 4]].concat();
        let peer = [
            attribute(1, &[7; 32]),
            attribute(2, &[0; 32]),
            attribute(4, &endpoint),
            attribute(5, &25u16.to_ne_bytes()),
            attribute(6, &[1_800_000_000i64.to_ne_bytes(), 5i64.to_ne_bytes()].concat()),
            attribute(7, &11u64.to_ne_bytes()),
            attribute(8, &12u64.to_ne_bytes()),
            attribute(10, &1u32.to_ne_bytes()),
        ]
        .concat();
        let device = [
            attribute(1, &3u32.to_ne_bytes()),
            attribute(2, b"kw0\0"),
            attribute(6, &51820u16.to_ne_bytes()),
            attribute(8 | NESTED, &attribute(NESTED, &peer)),
        ]
        .concat();
        let bytes = message(0, &device);
        let read = NetlinkMessage::<GenlMessage<WireguardMessage>>::deserialize(&bytes).unwrap();
        let NetlinkPayload::InnerMessage(answer) = read.payload else { panic!("no message") };
        let expected = PeerStats {
            public_key: PublicKey([7; 32]),
            endpoint: Some("[2001:db8::1]:51820".parse().unwrap()),
            last_handshake: Some(Duration::new(1_800_000_000, 5)),
            last_received: None,
            received_bytes: 11,
            sent_bytes: 12,
            dropped_packets: 0,
        };
        assert_eq!(stats(&[answer.payload]), [expected]);
    }
}
