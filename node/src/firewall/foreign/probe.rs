//! Packets whose way through the rules is followed. They are never sent.

use std::net::IpAddr;

use super::super::encode::IpFamily;

/// `IFNAMSIZ`
const NAME: usize = 16;
/// `IPPROTO_TCP`
const TCP: u8 = 6;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`
pub(super) const NEW: u32 = 1 << 3;

/// `RTN_UNICAST`, `RTN_LOCAL`
pub(super) const UNICAST: u8 = 1;
pub(super) const LOCAL: u8 = 2;

/// Where a packet goes: through the machine, or to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeWay {
    Forwarded,
    Delivered,
}

/// The first packet of a TCP connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbePacket {
    /// What depends on such packets, for people.
    pub(crate) what: &'static str,
    pub(crate) way: ProbeWay,
    pub(crate) input: String,
    /// Not used if the packet is delivered.
    pub(crate) output: String,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) port: u16,
}

impl ProbePacket {
    pub(super) fn family(&self) -> IpFamily {
        IpFamily::of(self.destination)
    }

    /// Returns the hooks through which it passes, in their order: `NF_INET_PRE_ROUTING`, `LOCAL_IN`, `FORWARD`, `POST_ROUTING`.
    pub(super) fn hooks(&self) -> &'static [u32] {
        match self.way {
            ProbeWay::Forwarded => &[0, 2, 4],
            ProbeWay::Delivered => &[0, 1],
        }
    }

    /// Returns the types of its source and its destination (`RTN_*`), as routes of this machine have them. All sources are other machines or pods.
    pub(super) fn address_types(&self) -> (u8, u8) {
        let destination = match self.way {
            ProbeWay::Forwarded => UNICAST,
            ProbeWay::Delivered => LOCAL,
        };
        (UNICAST, destination)
    }

    /// Returns a byte of the network header, if it is known.
    pub(super) fn network_byte(&self, at: usize) -> Option<u8> {
        let (source, destination) = (octets(self.source), octets(self.destination));
        let (source_at, destination_at, protocol_at) =
            if self.destination.is_ipv4() { (12, 16, 9) } else { (8, 24, 6) };
        let within = |bytes: &[u8], from: usize| bytes.get(at.checked_sub(from)?).copied();
        match at {
            at if at == protocol_at => Some(TCP),
            // The fragment's offset.
            6 | 7 if self.destination.is_ipv4() => Some(0),
            _ => within(&destination, destination_at).or_else(|| within(&source, source_at)),
        }
    }

    /// Returns a byte of the TCP header, if it is known: the destination port, and the flags.
    pub(super) fn transport_byte(&self, at: usize) -> Option<u8> {
        let [high, low] = self.port.to_be_bytes();
        match at {
            2 => Some(high),
            3 => Some(low),
            13 => Some(2),
            _ => None,
        }
    }

    /// Returns a fact about the packet (`NFT_META_*`), if it is known.
    pub(super) fn meta(&self, key: u32, hook: u32) -> Option<Vec<u8>> {
        let (is_v4, family) = (self.destination.is_ipv4(), self.family().number());
        let has_input = hook != 4;
        let has_output = matches!(hook, 2 | 4) && self.way == ProbeWay::Forwarded;
        match key {
            1 => Some(if is_v4 { vec![0x08, 0x00] } else { vec![0x86, 0xdd] }),
            6 if has_input => Some(padded(&self.input)),
            7 if has_output => Some(padded(&self.output)),
            15 => Some(vec![family]),
            16 => Some(vec![TCP]),
            // Unicast.
            19 => Some(vec![0]),
            _ => None,
        }
    }
}

fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(NAME, 0);
    bytes
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
