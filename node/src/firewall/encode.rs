//! Messages to nftables, as `linux/netfilter/nf_tables.h` and `nfnetlink.h` define them.

use std::{net::IpAddr, path::Path};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const DELETE_CHAIN: u16 = SUBSYSTEM << 8 | 5;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const DELETE_RULE: u16 = SUBSYSTEM << 8 | 8;
const GET_GENERATION: u16 = SUBSYSTEM << 8 | 16;

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;
/// `NLM_F_DUMP`
const ALL: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// The first register, of 16 bytes, and the register of verdicts.
pub(super) const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
/// `NF_INET_POST_ROUTING`, and the priority of source NAT.
pub(super) const POSTROUTING: u32 = 4;
const SOURCE_NAT: i32 = 100;
pub(super) const DROP: u32 = 0;
pub(super) const ACCEPT: u32 = 1;
const POSTROUTING_CHAIN: &str = "postrouting";
/// `IFNAMSIZ`: the length of an interface's name, padded with zeroes.
const NAME: usize = 16;
/// `NFT_CMP_EQ`, `NFT_CMP_NEQ`
pub(super) const EQUAL: u32 = 0;
pub(super) const UNEQUAL: u32 = 1;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Pods have link-local addresses of IPv6 in every cluster, so its tables matter wherever the kernel has it.
    pub(super) fn is_in_kernel(self) -> bool {
        self == Self::V4 || Path::new("/proc/sys/net/ipv6").exists()
    }

    /// `NFPROTO_IPV4`, `NFPROTO_IPV6`
    pub(super) fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// The offsets of source and destination in a packet's header.
    pub(super) fn offsets(self) -> (u32, u32) {
        match self {
            Self::V4 => (12, 16),
            Self::V6 => (8, 24),
        }
    }
}

/// The kinds of objects that can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NftObjectKind {
    Table,
    Chain,
    Rule,
}

impl NftObjectKind {
    /// `NFT_MSG_GETTABLE`, `NFT_MSG_GETCHAIN`, `NFT_MSG_GETRULE`
    fn question(self) -> u16 {
        let number = match self {
            Self::Table => 1,
            Self::Chain => 4,
            Self::Rule => 7,
        };
        SUBSYSTEM << 8 | number
    }
}

/// Changes that the kernel applies as a whole or not at all.
pub(super) struct Batch {
    family: IpFamily,
    bytes: Vec<u8>,
    count: u32,
}

impl Batch {
    pub(super) fn new(family: IpFamily) -> Self {
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
        self.add_chain(table, POSTROUTING_CHAIN, "nat", (POSTROUTING, SOURCE_NAT));
    }

    pub(super) fn add_chain(&mut self, table: &str, chain: &str, kind: &str, (hook, priority): (u32, i32)) {
        let hook = [number(1, hook), attribute(2, &priority.to_be_bytes())].concat();
        let chain = [text(1, table), text(3, chain), attribute(4 | NESTED, &hook), text(7, kind)].concat();
        self.push(NEW_CHAIN, CREATE, &chain);
    }

    /// Adds a chain that packets do not reach unless a rule leads to it.
    pub(super) fn add_unused_chain(&mut self, table: &str, chain: &str) {
        self.push(NEW_CHAIN, CREATE, &[text(1, table), text(3, chain)].concat());
    }

    pub(super) fn delete_chain(&mut self, table: &str, chain: &str) {
        self.push(DELETE_CHAIN, 0, &[text(1, table), text(3, chain)].concat());
    }

    /// Removes all rules of a chain.
    pub(super) fn flush_chain(&mut self, table: &str, chain: &str) {
        self.push(DELETE_RULE, 0, &[text(1, table), text(2, chain)].concat());
    }

    pub(super) fn delete_rule(&mut self, table: &str, chain: &str, handle: u64) {
        let handle = attribute(3, &handle.to_be_bytes());
        self.push(DELETE_RULE, 0, &[text(1, table), text(2, chain), handle].concat());
    }

    /// Accepts packets from one range to another one unchanged.
    pub(super) fn add_accept_rule(&mut self, table: &str, from: &IpNet, to: &IpNet) {
        let (source, destination) = self.family.offsets();
        let expressions = [within(source, from), within(destination, to), verdict(ACCEPT)].concat();
        self.add_rule(table, POSTROUTING_CHAIN, &expressions);
    }

    /// Replaces the source of packets from a range with the machine's address.
    pub(super) fn add_masquerade_rule(&mut self, table: &str, from: &IpNet) {
        let (source, _) = self.family.offsets();
        let expressions = [within(source, from), expression("masq", &[])].concat();
        self.add_rule(table, POSTROUTING_CHAIN, &expressions);
    }

    /// Looks up the type of a packet's destination, such as `local`.
    pub(super) fn add_route_lookup_rule(&mut self, table: &str, chain: &str) {
        /// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_DADDR`
        const ADDRESS_TYPE: u32 = 3;
        const OF_DESTINATION: u32 = 2;
        let lookup = [number(1, REGISTER), number(2, ADDRESS_TYPE), number(3, OF_DESTINATION)].concat();
        self.add_rule(table, chain, &expression("fib", &lookup));
    }

    pub(super) fn add_rule(&mut self, table: &str, chain: &str, expressions: &[u8]) {
        let rule = [text(1, table), text(2, chain), attribute(4 | NESTED, expressions)].concat();
        self.push(NEW_RULE, CREATE | APPEND, &rule);
    }

    /// Adds a rule with a comment, at the end of its chain or before a rule with this handle.
    pub(super) fn add_commented_rule(
        &mut self,
        (table, chain): (&str, &str),
        before: Option<u64>,
        expressions: &[u8],
        comment: &str,
    ) {
        let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
        // `NFTNL_UDATA_RULE_COMMENT`, and its length with the zero at its end.
        let comment = [&[0, length], comment.as_bytes(), &[0]].concat();
        let mut rule =
            [text(1, table), text(2, chain), attribute(4 | NESTED, expressions), attribute(7, &comment)].concat();
        match before {
            None => self.push(NEW_RULE, CREATE | APPEND, &rule),
            Some(handle) => {
                rule.extend(attribute(6, &handle.to_be_bytes()));
                self.push(NEW_RULE, CREATE, &rule);
            }
        }
    }

    fn push(&mut self, kind: u16, flags: u16, attributes: &[u8]) {
        self.count += 1;
        let flags = REQUEST | ACKNOWLEDGE | flags;
        message(&mut self.bytes, kind, flags, self.count, self.family.number(), 0, attributes);
    }

    /// Returns the bytes to send, and the number of messages that the kernel will acknowledge.
    pub(super) fn finish(mut self) -> (Vec<u8>, usize) {
        message(&mut self.bytes, BATCH_END, REQUEST, self.count + 1, 0, SUBSYSTEM, &[]);
        (self.bytes, usize::try_from(self.count).unwrap_or(usize::MAX))
    }
}

/// Builds a request that every kernel with nftables answers.
pub(super) fn generation_request() -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, GET_GENERATION, REQUEST | ACKNOWLEDGE, 1, 0, 0, &[]);
    bytes
}

/// Builds a request for all tables, chains or rules of a family (`NFPROTO_*`).
pub(super) fn list_request(family: u8, kind: NftObjectKind) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, kind.question(), REQUEST | ALL, 1, family, 0, &[]);
    bytes
}

/// Builds a request for all rules of a table.
pub(super) fn rules_request(family: u8, table: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, NftObjectKind::Rule.question(), REQUEST | ALL, 1, family, 0, &text(1, table));
    bytes
}

/// `NFT_MSG_GETSET` and `NFT_MSG_GETSETELEM`.
const GET_SET: u16 = 0x0a;
const GET_SET_ELEMENTS: u16 = 0x0d;

/// Builds a request for all sets of a family.
pub(super) fn sets_request(family: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, SUBSYSTEM << 8 | GET_SET, REQUEST | ALL, 1, family, 0, &[]);
    bytes
}

/// Builds a request for all elements of a set, which the attributes name.
pub(super) fn elements_request(family: u8, set: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, SUBSYSTEM << 8 | GET_SET_ELEMENTS, REQUEST | ALL, 1, family, 0, set);
    bytes
}

/// Returns the attributes of each message of a list, and the result of the list if the datagram ends it.
pub(super) fn listed(datagram: &[u8]) -> (Vec<Vec<u8>>, Option<Result<(), i32>>) {
    let mut found = Vec::new();
    for message in messages(datagram) {
        match message.kind {
            DONE => return (found, Some(Ok(()))),
            ERROR => return (found, Some(message.outcome())),
            _ => found.extend(message.body.get(4..).map(<[u8]>::to_vec)),
        }
    }
    (found, None)
}

/// Returns the attributes of a message or of another attribute, each with its kind.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[a, b, c, d] = rest.get(..4)? else { return None };
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & !NESTED, value))
    })
}

/// A received message.
struct NftMessage<'a> {
    kind: u16,
    /// The bytes after the netlink header.
    body: &'a [u8],
}

impl NftMessage<'_> {
    /// Returns the result of an error message. Errno 0 means success.
    fn outcome(&self) -> Result<(), i32> {
        match self.body.first_chunk().map(|first| i32::from_ne_bytes(*first)) {
            Some(0) | None => Ok(()),
            Some(errno) => Err(errno.saturating_neg()),
        }
    }
}

fn messages(mut rest: &[u8]) -> impl Iterator<Item = NftMessage<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(16..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NftMessage { kind, body })
    })
}

/// Returns the result of each acknowledged message of a datagram: success, or an errno. Other messages are skipped.
pub(super) fn answers(datagram: &[u8]) -> Vec<Result<(), i32>> {
    messages(datagram).filter(|message| message.kind == ERROR).map(|message| message.outcome()).collect()
}

/// Matches if the address at an offset of the packet's header is in the range.
pub(super) fn within(offset: u32, range: &IpNet) -> Vec<u8> {
    const NETWORK_HEADER: u32 = 1;
    let (mask, network) = match (range.netmask(), range.network()) {
        (IpAddr::V4(mask), IpAddr::V4(network)) => (mask.octets().to_vec(), network.octets().to_vec()),
        (mask, network) => (octets(mask), octets(network)),
    };
    let length = u32::try_from(mask.len()).unwrap_or_default();
    let load = [number(1, REGISTER), number(2, NETWORK_HEADER), number(3, offset), number(4, length)].concat();
    let zeroes = vec![0; mask.len()];
    let masked = [number(1, REGISTER), number(2, REGISTER), number(3, length), value(4, &mask), value(5, &zeroes)];
    let equal = [number(1, REGISTER), number(2, EQUAL), value(3, &network)].concat();
    [expression("payload", &load), expression("bitwise", &masked.concat()), expression("cmp", &equal)].concat()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(super) fn verdict(verdict: u32) -> Vec<u8> {
    let verdict = attribute(2 | NESTED, &number(1, verdict));
    expression("immediate", &[number(1, VERDICT_REGISTER), attribute(2 | NESTED, &verdict)].concat())
}

/// Matches if the packet's input interface has this name (`*`: this prefix), or, with [`UNEQUAL`], if it does not.
pub(super) fn match_interface(how: u32, name: &str) -> Vec<u8> {
    /// `NFT_META_IIFNAME`
    const INPUT_NAME: u32 = 6;
    match_name(INPUT_NAME, how, name)
}

/// The same for the output interface.
pub(super) fn match_output(how: u32, name: &str) -> Vec<u8> {
    /// `NFT_META_OIFNAME`
    const OUTPUT_NAME: u32 = 7;
    match_name(OUTPUT_NAME, how, name)
}

fn match_name(key: u32, how: u32, name: &str) -> Vec<u8> {
    let mut wanted = name.strip_suffix('*').unwrap_or(name).as_bytes().to_vec();
    if !name.ends_with('*') {
        wanted.resize(NAME, 0);
    }
    let load = [number(1, REGISTER), number(2, key)].concat();
    let compared = [number(1, REGISTER), number(2, how), value(3, &wanted)].concat();
    [expression("meta", &load), expression("cmp", &compared)].concat()
}

/// Encodes one element of a rule's list.
pub(super) fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    attribute(1 | NESTED, &[text(1, name), attribute(2 | NESTED, data)].concat())
}

/// Encodes `NFTA_DATA_VALUE` inside an attribute.
pub(super) fn value(kind: u16, bytes: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, &attribute(1, bytes))
}

pub(super) fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

pub(super) fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes `nlmsghdr`, `nfgenmsg` and attributes.
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
    fn attributes_are_padded_and_contain_their_length() {
        assert_eq!(text(1, "abc"), [8, 0, 1, 0, b'a', b'b', b'c', 0]);
        assert_eq!(text(1, "abcd"), [9, 0, 1, 0, b'a', b'b', b'c', b'd', 0, 0, 0, 0]);
        assert_eq!(number(2, 1), [8, 0, 2, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn names_of_interfaces_are_whole_unless_they_end_with_a_star() {
        let mut whole = b"lo".to_vec();
        whole.resize(NAME, 0);
        assert!(match_interface(UNEQUAL, "lo").ends_with(&value(3, &whole)));
        assert!(match_interface(UNEQUAL, "keelway*").ends_with(&value(3, b"keelway")));
    }

    #[test]
    fn responses_are_parsed() {
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

    #[test]
    fn written_messages_are_parsed() {
        let mut bytes = Vec::new();
        message(&mut bytes, NEW_TABLE, 0, 1, 2, 0, &[text(1, "filter"), number(2, 7)].concat());
        let (found, end) = listed(&bytes);
        assert_eq!(end, None);
        let seen: Vec<_> = attributes(&found[0]).collect();
        assert_eq!(seen, [(1, b"filter\0".as_slice()), (2, &[0, 0, 0, 7])]);
        message(&mut bytes, DONE, 0, 1, 0, 0, &[]);
        assert_eq!(listed(&bytes).1, Some(Ok(())));
    }
}
