//! Messages to nftables, as `linux/netfilter/nf_tables.h` and `nfnetlink.h` lay them out.

use std::net::IpAddr;

use ipnet::IpNet;

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const GET_GENERATION: u16 = SUBSYSTEM << 8 | 16;

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;
const ERROR: u16 = 2;

/// The first register, of 16 bytes, and the one of verdicts.
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
/// `NF_INET_POST_ROUTING`, and the priority at which sources are translated.
const POSTROUTING: u32 = 4;
const SOURCE_NAT: i32 = 100;
const ACCEPT: u32 = 1;
const CHAIN: &str = "postrouting";

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `NFPROTO_IPV4`, `NFPROTO_IPV6`
    fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// Where source and destination are in the header of a packet.
    fn offsets(self) -> (u32, u32) {
        match self {
            Self::V4 => (12, 16),
            Self::V6 => (8, 24),
        }
    }
}

/// Changes that are made all at once or not at all.
pub(super) struct Batch {
    family: Family,
    bytes: Vec<u8>,
    count: u32,
}

impl Batch {
    pub(super) fn new(family: Family) -> Self {
        let mut bytes = Vec::new();
        message(&mut bytes, BATCH_BEGIN, REQUEST, 0, 0, SUBSYSTEM, &[]);
        Self { family, bytes, count: 0 }
    }

    pub(super) fn add_table(&mut self, table: &str) {
        self.push(NEW_TABLE, CREATE, &text(1, table));
    }

    pub(super) fn delete_table(&mut self, table: &str) {
        self.push(DELETE_TABLE, 0, &text(1, table));
    }

    pub(super) fn add_postrouting_chain(&mut self, table: &str) {
        let hook = [number(1, POSTROUTING), attribute(2, &SOURCE_NAT.to_be_bytes())].concat();
        let chain = [text(1, table), text(3, CHAIN), attribute(4 | NESTED, &hook), text(7, "nat")].concat();
        self.push(NEW_CHAIN, CREATE, &chain);
    }

    /// What is from one range and to another one is left as it is.
    pub(super) fn add_accept_rule(&mut self, table: &str, from: &IpNet, to: &IpNet) {
        let (source, destination) = self.family.offsets();
        let expressions = [within(source, from), within(destination, to), accept()].concat();
        self.add_rule(table, &expressions);
    }

    /// What is from a range gets the machine's address.
    pub(super) fn add_masquerade_rule(&mut self, table: &str, from: &IpNet) {
        let (source, _) = self.family.offsets();
        let expressions = [within(source, from), expression("masq", &[])].concat();
        self.add_rule(table, &expressions);
    }

    fn add_rule(&mut self, table: &str, expressions: &[u8]) {
        let rule = [text(1, table), text(2, CHAIN), attribute(4 | NESTED, expressions)].concat();
        self.push(NEW_RULE, CREATE | APPEND, &rule);
    }

    fn push(&mut self, kind: u16, flags: u16, attributes: &[u8]) {
        self.count += 1;
        let flags = REQUEST | ACKNOWLEDGE | flags;
        message(&mut self.bytes, kind, flags, self.count, self.family.number(), 0, attributes);
    }

    /// The bytes to send, and how many messages will be acknowledged.
    pub(super) fn finish(mut self) -> (Vec<u8>, usize) {
        message(&mut self.bytes, BATCH_END, REQUEST, self.count + 1, 0, SUBSYSTEM, &[]);
        (self.bytes, usize::try_from(self.count).unwrap_or(usize::MAX))
    }
}

/// A question that every kernel with nftables answers.
pub(super) fn generation_request() -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, GET_GENERATION, REQUEST | ACKNOWLEDGE, 1, 0, 0, &[]);
    bytes
}

/// What the kernel said to each message of a datagram: well, or its errno. What is no answer of that kind is passed over.
pub(super) fn answers(datagram: &[u8]) -> Vec<Result<(), i32>> {
    let mut answers = Vec::new();
    let mut rest = datagram;
    while let Some((header, _)) = rest.split_at_checked(16) {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let length = usize::try_from(length).unwrap_or(rest.len()).max(16);
        if u16::from_ne_bytes([header[4], header[5]]) == ERROR
            && let Some(&[a, b, c, d]) = rest.get(16..20)
        {
            let errno = i32::from_ne_bytes([a, b, c, d]);
            answers.push(if errno == 0 { Ok(()) } else { Err(errno.saturating_neg()) });
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    answers
}

/// Loads what is at an offset of the packet's header, and goes on where it is in the range.
fn within(offset: u32, range: &IpNet) -> Vec<u8> {
    const NETWORK_HEADER: u32 = 1;
    let (mask, network) = match (range.netmask(), range.network()) {
        (IpAddr::V4(mask), IpAddr::V4(network)) => (mask.octets().to_vec(), network.octets().to_vec()),
        (mask, network) => (octets(mask), octets(network)),
    };
    let length = u32::try_from(mask.len()).unwrap_or_default();
    let load = [number(1, REGISTER), number(2, NETWORK_HEADER), number(3, offset), number(4, length)].concat();
    let zeroes = vec![0; mask.len()];
    let masked = [number(1, REGISTER), number(2, REGISTER), number(3, length), value(4, &mask), value(5, &zeroes)];
    let equal = [number(1, REGISTER), number(2, 0), value(3, &network)].concat();
    [expression("payload", &load), expression("bitwise", &masked.concat()), expression("cmp", &equal)].concat()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn accept() -> Vec<u8> {
    let verdict = attribute(2 | NESTED, &number(1, ACCEPT));
    expression("immediate", &[number(1, VERDICT_REGISTER), attribute(2 | NESTED, &verdict)].concat())
}

/// One element of a rule's list.
fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    attribute(1 | NESTED, &[text(1, name), attribute(2 | NESTED, data)].concat())
}

/// `NFTA_DATA_VALUE` within an attribute.
fn value(kind: u16, bytes: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, &attribute(1, bytes))
}

fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `nlmsghdr`, `nfgenmsg`, attributes.
fn message(to: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, family: u8, resource: u16, attributes: &[u8]) {
    let length = u32::try_from(attributes.len() + 20).unwrap_or(u32::MAX);
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend(sequence.to_ne_bytes());
    to.extend(0u32.to_ne_bytes());
    to.extend([family, 0]);
    to.extend(resource.to_be_bytes());
    to.extend(attributes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_say_their_length() {
        assert_eq!(text(1, "abc"), [8, 0, 1, 0, b'a', b'b', b'c', 0]);
        assert_eq!(text(1, "abcd"), [9, 0, 1, 0, b'a', b'b', b'c', b'd', 0, 0, 0, 0]);
        assert_eq!(number(2, 1), [8, 0, 2, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn answers_are_read() {
        let mut bytes = Vec::new();
        for errno in [0i32, -2] {
            bytes.extend(36u32.to_ne_bytes());
            bytes.extend(ERROR.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(errno.to_ne_bytes());
            bytes.extend([0; 16]);
        }
        assert_eq!(answers(&bytes), [Ok(()), Err(2)]);
        assert_eq!(answers(&bytes[..10]), []);
    }
}
