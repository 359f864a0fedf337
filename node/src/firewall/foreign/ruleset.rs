//! The rules of other programs, as the kernel lists them.

use std::collections::BTreeMap;

use super::{
    super::{
        encode::attributes,
        seen::{number, text},
    },
    legacy_rule::LegacyRule,
    sets::NftSet,
};

/// The name of a chain or set within its table.
pub(super) type TableItem = (String, String);

/// All chains, rules and sets of a family.
#[derive(Debug, Default)]
pub(crate) struct ForeignRuleset {
    /// The family, such as `inet`.
    pub(super) family: &'static str,
    pub(super) chains: BTreeMap<TableItem, ForeignChain>,
    pub(super) sets: BTreeMap<TableItem, NftSet>,
}

#[derive(Debug, Default)]
pub(super) struct ForeignChain {
    /// `None` for a chain that packets reach only through a rule.
    pub(super) base: Option<BaseChain>,
    pub(super) rules: Vec<ForeignRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BaseChain {
    /// `NF_INET_*`
    pub(super) hook: u32,
    pub(super) drops: bool,
}

#[derive(Debug)]
pub(super) struct ForeignRule {
    /// The number of the kernel, or, of `iptables-legacy`, the rule's place in its chain.
    pub(super) handle: u64,
    pub(super) body: RuleBody,
    /// The comment that `nft` stores with a rule.
    pub(super) comment: Option<String>,
}

/// What a rule matches and decides.
#[derive(Debug)]
pub(super) enum RuleBody {
    Nft(Vec<NftExpression>),
    Legacy(LegacyRule),
}

/// One element of a rule: its name, and its attributes.
#[derive(Debug)]
pub(super) struct NftExpression {
    pub(super) name: String,
    attributes: BTreeMap<u16, Vec<u8>>,
}

/// What a rule or an element of a map decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NftVerdict {
    Accept,
    Drop,
    Continue,
    Break,
    Return,
    Jump(String),
    Goto(String),
    /// Another program decides, for example.
    Other,
}

impl NftExpression {
    pub(super) fn number(&self, attribute: u16) -> Option<u32> {
        number(self.bytes(attribute)?)
    }

    pub(super) fn bytes(&self, attribute: u16) -> Option<&[u8]> {
        self.attributes.get(&attribute).map(Vec::as_slice)
    }

    pub(super) fn text(&self, attribute: u16) -> Option<String> {
        self.bytes(attribute).map(text)
    }

    /// Returns the value of an attribute that contains data.
    pub(super) fn value(&self, attribute: u16) -> Option<&[u8]> {
        find(self.bytes(attribute)?, 1)
    }

    /// Returns the verdict of an attribute that contains data.
    pub(super) fn verdict(&self, attribute: u16) -> Option<NftVerdict> {
        NftVerdict::of(find(self.bytes(attribute)?, 2)?)
    }
}

impl NftVerdict {
    /// Parses a code (`NF_*`, `NFT_*`), and the chain of a jump.
    pub(super) fn of(data: &[u8]) -> Option<Self> {
        let chain = || find(data, 2).map(text);
        Some(match number(find(data, 1)?)?.cast_signed() {
            0 => Self::Drop,
            1 => Self::Accept,
            -1 => Self::Continue,
            -2 => Self::Break,
            -3 => Self::Jump(chain()?),
            -4 => Self::Goto(chain()?),
            -5 => Self::Return,
            _ => Self::Other,
        })
    }
}

impl ForeignRuleset {
    /// Adds a chain from the attributes of one message of a list. Only chains of the type `filter` drop packets.
    pub(super) fn note_chain(&mut self, message: &[u8]) {
        let of: BTreeMap<u16, &[u8]> = attributes(message).collect();
        let word = |attribute: u16| of.get(&attribute).map(|value| text(value));
        let base = || {
            let hook = number(find(of.get(&4)?, 1)?)?;
            let drops = of.get(&5).and_then(|policy| number(policy)) == Some(0);
            (word(7)? == "filter").then_some(BaseChain { hook, drops })
        };
        if let Some(name) = word(1).zip(word(3)) {
            self.chains.entry(name).or_default().base = base();
        }
    }

    pub(super) fn note_rule(&mut self, message: &[u8]) {
        let of: BTreeMap<u16, &[u8]> = attributes(message).collect();
        let word = |attribute: u16| of.get(&attribute).map(|value| text(value));
        let handle = of.get(&3).and_then(|handle| handle.first_chunk()).map(|bytes| u64::from_be_bytes(*bytes));
        let Some((name, handle)) = word(1).zip(word(2)).zip(handle) else { return };
        let body = RuleBody::Nft(expressions(of.get(&4).copied().unwrap_or_default()));
        let comment = of.get(&7).and_then(|data| comment(data));
        self.chains.entry(name).or_default().rules.push(ForeignRule { handle, body, comment });
    }
}

/// Parses the elements of a rule.
pub(super) fn expressions(list: &[u8]) -> Vec<NftExpression> {
    attributes(list).filter_map(|(_, bytes)| expression(bytes)).collect()
}

fn expression(bytes: &[u8]) -> Option<NftExpression> {
    let data = find(bytes, 2).unwrap_or_default();
    let attributes = attributes(data).map(|(kind, value)| (kind, value.to_vec())).collect();
    Some(NftExpression { name: text(find(bytes, 1)?), attributes })
}

/// Finds the comment (`NFTNL_UDATA_RULE_COMMENT`) among the user data of a rule: elements of type, length and value.
pub(in super::super) fn comment(mut data: &[u8]) -> Option<String> {
    while let &[kind, length, ref rest @ ..] = data {
        let value = rest.get(..length.into())?;
        if kind == 0 {
            return Some(text(value));
        }
        data = rest.get(length.into()..)?;
    }
    None
}

pub(super) fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}
