//! Matches on a packet's connection, protocol and ports, as `linux/netfilter/nf_tables.h` defines them.

use super::encode::{EQUAL, IpFamily, REGISTER, UNEQUAL, expression, number, value};

/// `NFT_CT_STATE` with `NF_CT_STATE_BIT` of established and related connections.
const STATE: u32 = 0;
const KNOWN: u32 = 1 << 1 | 1 << 2;
/// `NFT_CT_STATUS` with `IPS_DST_NAT`.
const STATUS: u32 = 2;
const TRANSLATED: u32 = 1 << 5;

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// `IPPROTO_TCP`, `IPPROTO_UDP`
    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// Matches if the packet belongs to a known connection (`false`: if it does not).
pub(super) fn of_known_connection(is: bool) -> Vec<u8> {
    connection_bits(STATE, KNOWN, is)
}

/// Matches if the packet's destination was translated.
pub(super) fn is_translated() -> Vec<u8> {
    connection_bits(STATUS, TRANSLATED, true)
}

/// Matches if one of these bits is set (`false`: if none is). The kernel stores them in the machine's byte order.
fn connection_bits(key: u32, bits: u32, are_set: bool) -> Vec<u8> {
    let load = [number(1, REGISTER), number(2, key)].concat();
    let zeroes = [0; 4];
    let masked =
        [number(1, REGISTER), number(2, REGISTER), number(3, 4), value(4, &bits.to_ne_bytes()), value(5, &zeroes)];
    let how = if are_set { UNEQUAL } else { EQUAL };
    let compared = [number(1, REGISTER), number(2, how), value(3, &zeroes)].concat();
    [expression("ct", &load), expression("bitwise", &masked.concat()), expression("cmp", &compared)].concat()
}

/// Matches the messages by which IPv4 (ICMP) or IPv6 (ICMPv6) reports errors and finds neighbours.
pub(super) fn is_control_message(family: IpFamily) -> Vec<u8> {
    is_protocol(if family == IpFamily::V4 { 1 } else { 58 })
}

/// Matches packets to a port.
pub(super) fn is_to_port(transport: Transport, port: u16) -> Vec<u8> {
    const TRANSPORT_HEADER: u32 = 2;
    const DESTINATION_PORT: u32 = 2;
    let load = [number(1, REGISTER), number(2, TRANSPORT_HEADER), number(3, DESTINATION_PORT), number(4, 2)].concat();
    let equal = [number(1, REGISTER), number(2, EQUAL), value(3, &port.to_be_bytes())].concat();
    [is_protocol(transport.number()), expression("payload", &load), expression("cmp", &equal)].concat()
}

/// Matches packets of TCP that begin a connection, in either direction.
pub(super) fn is_tcp_opening() -> Vec<u8> {
    const TRANSPORT_HEADER: u32 = 2;
    const FLAGS: u32 = 13;
    const SYN: u8 = 1 << 1;
    let load = [number(1, REGISTER), number(2, TRANSPORT_HEADER), number(3, FLAGS), number(4, 1)].concat();
    let masked = [number(1, REGISTER), number(2, REGISTER), number(3, 1), value(4, &[SYN]), value(5, &[0])].concat();
    let compared = [number(1, REGISTER), number(2, UNEQUAL), value(3, &[0])].concat();
    let flags = [expression("payload", &load), expression("bitwise", &masked), expression("cmp", &compared)].concat();
    [is_protocol(Transport::Tcp.number()), flags].concat()
}

fn is_protocol(protocol: u8) -> Vec<u8> {
    /// `NFT_META_L4PROTO`
    const PROTOCOL: u32 = 16;
    let load = [number(1, REGISTER), number(2, PROTOCOL)].concat();
    let equal = [number(1, REGISTER), number(2, EQUAL), value(3, &[protocol])].concat();
    [expression("meta", &load), expression("cmp", &equal)].concat()
}
