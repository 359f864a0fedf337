//! The few fields of an IP packet that a router reads and writes, and UDP packets of a relay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, UdpPacket, UdpRepr};

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const HOPS: u8 = 64;

/// Returns the packet's source, or `None` if it is not an IP packet.
pub(crate) fn source(packet: &[u8]) -> Option<IpAddr> {
    match version(packet)? {
        IpVersion::V4 => v4_at(packet, 12),
        IpVersion::V6 => v6_at(packet, 8),
    }
}

/// Returns the packet's destination, or `None` if it is not an IP packet.
pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match version(packet)? {
        IpVersion::V4 => v4_at(packet, 16),
        IpVersion::V6 => v6_at(packet, 24),
    }
}

/// Returns the TCP segment of a packet.
pub(crate) fn tcp_segment(packet: &[u8]) -> Option<&[u8]> {
    const TCP: u8 = 6;
    segment(packet, TCP)
}

/// Returns the payload of a UDP packet to this port.
pub(crate) fn udp_payload(packet: &[u8], port: u16) -> Option<&[u8]> {
    const UDP: u8 = 17;
    let (header, payload) = segment(packet, UDP)?.split_at_checked(UDP_HEADER)?;
    (header[2..4] == port.to_be_bytes()).then_some(payload)
}

/// Returns a UDP packet whose ends have the same port. Both addresses must be of one family.
pub(crate) fn udp_packet(port: u16, from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: port, dst_port: port };
    let (from, to) = (from.into(), to.into());
    let ip = IpRepr::new(from, to, IpProtocol::Udp, udp.header_len() + payload.len(), HOPS);
    let checksums = ChecksumCapabilities::default();
    let mut packet = vec![0; ip.buffer_len()];
    ip.emit(&mut packet[..], &checksums);
    let mut segment = UdpPacket::new_unchecked(&mut packet[ip.header_len()..]);
    udp.emit(&mut segment, &from, &to, payload.len(), |space| space.copy_from_slice(payload), &checksums);
    packet
}

/// Returns what follows the IP header. In IPv6 it must follow the fixed header directly; in IPv4, options may precede it.
fn segment(packet: &[u8], wanted: u8) -> Option<&[u8]> {
    let (protocol, header) = match version(packet)? {
        IpVersion::V4 => (packet[9], usize::from(packet[0] & 15) * 4),
        IpVersion::V6 => (packet[6], V6_HEADER),
    };
    packet.get(header..).filter(|_| protocol == wanted)
}

/// Counts one hop, as every router must (RFC 1812, section 5.3.1; RFC 8200, section 3), so that no packet circles forever between two
/// relays that route it to each other. Returns `false` if the packet must be dropped.
pub(crate) fn count_hop(packet: &mut [u8]) -> bool {
    match version(packet) {
        Some(IpVersion::V4) => count_v4_hop(packet),
        Some(IpVersion::V6) => {
            let more = packet[7] > 1;
            packet[7] = packet[7].saturating_sub(1);
            more
        }
        None => false,
    }
}

/// A decrement in the high byte of a 16-bit word increments the checksum by 0x0100 (RFC 1624).
fn count_v4_hop(packet: &mut [u8]) -> bool {
    if packet[8] <= 1 {
        return false;
    }
    packet[8] -= 1;
    let sum = u32::from(u16::from_be_bytes([packet[10], packet[11]])) + 0x0100;
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&folded.to_be_bytes()[2..]);
    true
}

enum IpVersion {
    V4,
    V6,
}

fn version(packet: &[u8]) -> Option<IpVersion> {
    match packet.first()? >> 4 {
        4 if packet.len() >= V4_HEADER => Some(IpVersion::V4),
        6 if packet.len() >= V6_HEADER => Some(IpVersion::V6),
        _ => None,
    }
}

fn v4_at(packet: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn v6_at(packet: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checksum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
    }

    proptest! {
        #[test]
        fn a_counted_hop_leaves_a_right_checksum(mut header in proptest::array::uniform20(any::<u8>())) {
            header[0] = 0x45;
            header[10..12].fill(0);
            let right = checksum(&header);
            header[10..12].copy_from_slice(&right.to_be_bytes());
            let hops = header[8];
            let more = count_hop(&mut header);
            prop_assert_eq!(more, hops > 1);
            prop_assert_eq!(checksum(&header), 0);
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (source(&bytes), destination(&bytes), tcp_segment(&bytes), udp_payload(&bytes, 9));
            let _ = count_hop(&mut bytes);
        }
    }
}
