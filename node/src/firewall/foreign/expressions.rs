//! What one rule decides about a packet. An expression whose effect is not known makes the decision uncertain.

use super::{
    probe::{NEW, ProbePacket},
    ruleset::{NftExpression, NftVerdict},
    sets::{NftSet, SetLookup},
};

/// The bytes of `NFT_REG_1` to `NFT_REG_4`, which `NFT_REG32_00` to `NFT_REG32_15` share.
const REGISTERS: usize = 64;
/// `NFT_REG_VERDICT`
const VERDICT: u32 = 0;
/// Expressions that neither match nor decide.
const NEUTRAL: [&str; 6] = ["counter", "log", "last", "notrack", "dup", "flow_offload"];
/// The same of `iptables`.
pub(super) const NEUTRAL_TARGETS: [&str; 7] = ["LOG", "NFLOG", "MARK", "CONNMARK", "CT", "CHECKSUM", "TCPMSS"];
/// Expressions that end a chain of the type `nat`, and let the packet pass.
const TRANSLATIONS: [&str; 4] = ["masq", "nat", "redir", "tproxy"];

/// What a rule decides.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RuleDecision {
    pub(super) verdict: NftVerdict,
    /// Whether all of its matches are known to match.
    pub(super) is_certain: bool,
}

/// The effect of one expression.
enum ExpressionEffect {
    Matches,
    Differs,
    Unknown,
    Decides(NftVerdict),
}

/// Evaluates one rule. `set` finds a set of its table by name.
pub(super) struct RuleEvaluation<'a> {
    packet: &'a ProbePacket,
    hook: u32,
    set: &'a dyn Fn(&str) -> Option<&'a NftSet>,
    registers: [Option<u8>; REGISTERS],
}

impl<'a> RuleEvaluation<'a> {
    pub(super) fn new(packet: &'a ProbePacket, hook: u32, set: &'a dyn Fn(&str) -> Option<&'a NftSet>) -> Self {
        Self { packet, hook, set, registers: [None; REGISTERS] }
    }

    /// Returns what a rule of these expressions decides, or `None` if it does not match or decides nothing.
    pub(super) fn decide(mut self, expressions: &[NftExpression]) -> Option<RuleDecision> {
        let mut is_certain = true;
        for expression in expressions {
            match self.effect(expression) {
                ExpressionEffect::Matches | ExpressionEffect::Decides(NftVerdict::Continue) => {}
                ExpressionEffect::Differs | ExpressionEffect::Decides(NftVerdict::Break) => return None,
                ExpressionEffect::Unknown => is_certain = false,
                ExpressionEffect::Decides(verdict) => return Some(RuleDecision { verdict, is_certain }),
            }
        }
        None
    }

    fn effect(&mut self, expression: &NftExpression) -> ExpressionEffect {
        match expression.name.as_str() {
            name if NEUTRAL.contains(&name) => ExpressionEffect::Matches,
            name if TRANSLATIONS.contains(&name) => ExpressionEffect::Decides(NftVerdict::Accept),
            "reject" => ExpressionEffect::Decides(NftVerdict::Drop),
            "queue" => ExpressionEffect::Decides(NftVerdict::Other),
            "immediate" => self.immediate(expression),
            "meta" => self.load(expression, (1, 3), |of, key| of.packet.meta(key, of.hook)),
            "ct" => self.load(expression, (1, 4), |_, key| connection(key)),
            "payload" => self.payload(expression),
            "bitwise" => self.bitwise(expression),
            "cmp" => self.compare(expression),
            "range" => self.range(expression),
            "lookup" => self.look_up(expression),
            "fib" => self.route(expression),
            "match" => extension(self.packet, expression),
            "target" => target(expression),
            _ => self.other(expression),
        }
    }

    /// An expression that is not known may match or not, and may write any register.
    fn other(&mut self, _: &NftExpression) -> ExpressionEffect {
        self.registers = [None; REGISTERS];
        ExpressionEffect::Unknown
    }

    fn immediate(&mut self, expression: &NftExpression) -> ExpressionEffect {
        if expression.number(1) == Some(VERDICT) {
            return ExpressionEffect::Decides(expression.verdict(2).unwrap_or(NftVerdict::Other));
        }
        self.store(expression.number(1), expression.value(2).map(known));
        ExpressionEffect::Matches
    }

    /// Loads a fact into a register. `attributes` are those of the destination, and of the source if the expression changes the packet.
    fn load(
        &mut self,
        expression: &NftExpression,
        (destination, source): (u16, u16),
        fact: impl Fn(&Self, u32) -> Option<Vec<u8>>,
    ) -> ExpressionEffect {
        if expression.number(source).is_none() {
            let fact = expression.number(2).and_then(|key| fact(self, key));
            self.store(expression.number(destination), fact.map(|fact| known(&fact)));
        }
        ExpressionEffect::Matches
    }

    fn payload(&mut self, expression: &NftExpression) -> ExpressionEffect {
        let number = |attribute| expression.number(attribute).and_then(|number| usize::try_from(number).ok());
        let (Some(base), Some(offset), Some(length)) = (expression.number(2), number(3), number(4)) else {
            return self.other(expression);
        };
        if expression.number(5).is_none() {
            let byte = |at| match base {
                1 => self.packet.network_byte(at),
                2 => self.packet.transport_byte(at),
                _ => None,
            };
            let bytes = (offset..offset.saturating_add(length.min(REGISTERS))).map(byte).collect();
            self.store(expression.number(1), Some(bytes));
        }
        ExpressionEffect::Matches
    }

    fn bitwise(&mut self, expression: &NftExpression) -> ExpressionEffect {
        let masks = expression.value(4).zip(expression.value(5)).filter(|_| expression.number(6).unwrap_or(0) == 0);
        let result = masks.map(|(mask, flipped)| {
            let bytes = self.fetch(expression.number(1), mask.len());
            let each = bytes.into_iter().zip(mask.iter().zip(flipped));
            each.map(|(byte, (mask, flipped))| match byte {
                Some(byte) => Some((byte & mask) ^ flipped),
                None => (*mask == 0).then_some(*flipped),
            })
            .collect()
        });
        self.store(expression.number(2), result);
        ExpressionEffect::Matches
    }

    fn compare(&self, expression: &NftExpression) -> ExpressionEffect {
        let Some((how, wanted)) = expression.number(2).zip(expression.value(3)) else {
            return ExpressionEffect::Unknown;
        };
        let bytes = self.fetch(expression.number(1), wanted.len());
        let differs = bytes.iter().zip(wanted).any(|(byte, wanted)| byte.is_some_and(|byte| byte != *wanted));
        let all: Option<Vec<u8>> = bytes.into_iter().collect();
        match (all, how) {
            (Some(bytes), _) => {
                let order = bytes.as_slice().cmp(wanted);
                matched(match how {
                    0 => order.is_eq(),
                    1 => order.is_ne(),
                    2 => order.is_lt(),
                    3 => order.is_le(),
                    4 => order.is_gt(),
                    5 => order.is_ge(),
                    _ => return ExpressionEffect::Unknown,
                })
            }
            (None, 0 | 1) if differs => matched(how == 1),
            (None, _) => ExpressionEffect::Unknown,
        }
    }

    fn range(&self, expression: &NftExpression) -> ExpressionEffect {
        let Some((from, to)) = expression.value(3).zip(expression.value(4)) else { return ExpressionEffect::Unknown };
        let bytes: Option<Vec<u8>> = self.fetch(expression.number(1), from.len()).into_iter().collect();
        let is_inside = bytes.map(|bytes| from <= bytes.as_slice() && bytes.as_slice() <= to);
        is_inside.map_or(ExpressionEffect::Unknown, |is| matched(is != (expression.number(2) == Some(1))))
    }

    fn look_up(&mut self, expression: &NftExpression) -> ExpressionEffect {
        let set = expression.text(1).and_then(|name| (self.set)(&name));
        let is_inverted = expression.number(5).unwrap_or_default() & 1 != 0;
        let key = self.fetch(expression.number(2), REGISTERS);
        let destination = expression.number(3);
        match set.map_or(SetLookup::Unknown, |set| set.look_up(&key)) {
            SetLookup::Found(element) if destination == Some(VERDICT) => {
                ExpressionEffect::Decides(element.verdict.clone().unwrap_or(NftVerdict::Other))
            }
            // The map may decide anything.
            SetLookup::Unknown if destination == Some(VERDICT) => ExpressionEffect::Decides(NftVerdict::Other),
            SetLookup::Unknown => {
                self.store(destination, None);
                ExpressionEffect::Unknown
            }
            SetLookup::Found(element) => {
                self.store(destination, element.value.as_deref().map(known));
                matched(!is_inverted)
            }
            SetLookup::Absent => matched(is_inverted),
        }
    }

    /// Loads the type of an address (`NFT_FIB_RESULT_ADDRTYPE`). With other flags than one of `saddr` and `daddr`, it depends on an interface or a mark.
    fn route(&mut self, expression: &NftExpression) -> ExpressionEffect {
        const ADDRESS_TYPE: u32 = 3;
        let (source, destination) = self.packet.address_types();
        let kind = match (expression.number(2), expression.number(3)) {
            (Some(ADDRESS_TYPE), Some(1)) => source,
            (Some(ADDRESS_TYPE), Some(2)) => destination,
            _ => return self.other(expression),
        };
        self.store(expression.number(1), Some(known(&u32::from(kind).to_ne_bytes())));
        ExpressionEffect::Matches
    }

    fn fetch(&self, register: Option<u32>, length: usize) -> Vec<Option<u8>> {
        let from = register.and_then(offset).unwrap_or(REGISTERS);
        (from..from.saturating_add(length)).map(|at| self.registers.get(at).copied().flatten()).collect()
    }

    /// Stores bytes in a register, padded to words of 32 bits. `None`: the value is not known.
    fn store(&mut self, register: Option<u32>, value: Option<Vec<Option<u8>>>) {
        let Some(from) = register.and_then(offset) else { return };
        let rest = self.registers.get_mut(from..).unwrap_or_default();
        match value {
            None => rest.fill(None),
            Some(mut bytes) => {
                bytes.resize(bytes.len().next_multiple_of(4), Some(0));
                rest.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            }
        }
    }
}

fn offset(register: u32) -> Option<usize> {
    let offset = match register {
        1..=4 => (register - 1) * 16,
        8..=23 => (register - 8) * 4,
        _ => return None,
    };
    usize::try_from(offset).ok()
}

fn known(bytes: &[u8]) -> Vec<Option<u8>> {
    bytes.iter().copied().map(Some).collect()
}

fn matched(does: bool) -> ExpressionEffect {
    if does { ExpressionEffect::Matches } else { ExpressionEffect::Differs }
}

/// Returns a fact about the packet's connection (`NFT_CT_*`): it is new, and nothing is translated.
fn connection(key: u32) -> Option<Vec<u8>> {
    match key {
        0 => Some(NEW.to_ne_bytes().to_vec()),
        1 => Some(vec![0]),
        2 => Some(0u32.to_ne_bytes().to_vec()),
        _ => None,
    }
}

/// Evaluates a match of `iptables`. Of `conntrack`, only states are known (`struct xt_conntrack_mtinfo3`).
fn extension(packet: &ProbePacket, expression: &NftExpression) -> ExpressionEffect {
    const STATE: u16 = 1;
    match expression.text(1).as_deref() {
        Some("comment") => ExpressionEffect::Matches,
        Some("addrtype") => address_types(packet, expression).map_or(ExpressionEffect::Unknown, matched),
        Some("conntrack") => {
            let word = |at: usize| {
                let bytes = expression.bytes(3)?.get(at..)?.first_chunk()?;
                Some(u16::from_ne_bytes(*bytes))
            };
            let (Some(STATE), Some(inverted), Some(states)) = (word(146), word(148), word(150)) else {
                return ExpressionEffect::Unknown;
            };
            matched((u32::from(states) & NEW != 0) != (inverted & STATE != 0))
        }
        _ => ExpressionEffect::Unknown,
    }
}

/// Whether the packet has the types of addresses of a match (`struct xt_addrtype_info_v1`). `None`: it depends on an interface.
fn address_types(packet: &ProbePacket, expression: &NftExpression) -> Option<bool> {
    const INVERTED: [u32; 2] = [1, 2];
    let info = expression.bytes(3).filter(|_| expression.number(2) == Some(1))?;
    let mask = |at: usize| Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let flags = u32::from_ne_bytes(*info.get(4..)?.first_chunk()?);
    if flags & !(INVERTED[0] | INVERTED[1]) != 0 {
        return None;
    }
    let (source, destination) = packet.address_types();
    let has = |kind: u8, mask: u16, inverted: u32| mask == 0 || (mask & (1 << kind) != 0) != (flags & inverted != 0);
    Some(has(source, mask(0)?, INVERTED[0]) && has(destination, mask(2)?, INVERTED[1]))
}

fn target(expression: &NftExpression) -> ExpressionEffect {
    match expression.text(1).as_deref() {
        Some("REJECT" | "DROP") => ExpressionEffect::Decides(NftVerdict::Drop),
        Some(name) if NEUTRAL_TARGETS.contains(&name) => ExpressionEffect::Matches,
        _ => ExpressionEffect::Decides(NftVerdict::Other),
    }
}
