//! The way of a packet through the chains of a family.

use super::{
    expressions::RuleEvaluation,
    probe::ProbePacket,
    ruleset::{ForeignChain, ForeignRuleset, NftVerdict, RuleBody, TableItem},
};

/// The kernel allows 16 jumps (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;

/// The chain that drops a packet for certain, with the rule, or its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DroppingChain {
    /// Such as `ip filter FORWARD`, or `iptables-legacy filter FORWARD`.
    pub(crate) chain: String,
    /// The handle of the rule, or its place in a chain of `iptables-legacy`. `None`: the policy.
    pub(crate) rule: Option<u64>,
}

/// The end of a chain.
#[derive(Debug, PartialEq, Eq)]
enum ChainEnd {
    /// The chain decides nothing.
    Returned,
    Accepted,
    Dropped(DroppingChain),
    /// It depends on what is not known.
    Unknown,
}

/// Returns the chain that drops the packet. If that depends on a match that is not known, no chain does.
pub(super) fn dropping_chain(rules: &ForeignRuleset, packet: &ProbePacket) -> Option<DroppingChain> {
    packet.hooks().iter().find_map(|hook| {
        let walk = ChainWalk { rules, packet, hook: *hook };
        let mut bases =
            rules.chains.iter().filter(|(_, chain)| chain.base.as_ref().is_some_and(|base| base.hook == *hook));
        bases.find_map(|(name, chain)| match walk.end(name, chain, 0) {
            ChainEnd::Dropped(chain) => Some(chain),
            ChainEnd::Returned if chain.base.as_ref().is_some_and(|base| base.drops) => Some(walk.drop(name, None)),
            ChainEnd::Returned | ChainEnd::Accepted | ChainEnd::Unknown => None,
        })
    })
}

struct ChainWalk<'a> {
    rules: &'a ForeignRuleset,
    packet: &'a ProbePacket,
    hook: u32,
}

impl ChainWalk<'_> {
    fn drop(&self, (table, chain): &TableItem, rule: Option<u64>) -> DroppingChain {
        DroppingChain { chain: format!("{} {table} {chain}", self.rules.family), rule }
    }

    /// An uncertain rule that drops is passed over. One that accepts or returns makes everything after it uncertain.
    fn end(&self, name: &TableItem, chain: &ForeignChain, depth: usize) -> ChainEnd {
        let set = |set: &str| self.rules.sets.get(&(name.0.clone(), set.to_owned()));
        for rule in &chain.rules {
            let found = match &rule.body {
                RuleBody::Nft(expressions) => RuleEvaluation::new(self.packet, self.hook, &set).decide(expressions),
                RuleBody::Legacy(legacy) => legacy.decide(self.packet, self.hook),
            };
            let Some(found) = found else { continue };
            let end = match (found.verdict, found.is_certain) {
                (NftVerdict::Drop, true) => ChainEnd::Dropped(self.drop(name, Some(rule.handle))),
                (NftVerdict::Drop, false) | (NftVerdict::Continue | NftVerdict::Break, _) => continue,
                (NftVerdict::Accept, true) => ChainEnd::Accepted,
                (NftVerdict::Return, true) => ChainEnd::Returned,
                (NftVerdict::Accept | NftVerdict::Return | NftVerdict::Other, _) => ChainEnd::Unknown,
                (NftVerdict::Jump(to), is_certain) => match self.target(name, &to, depth) {
                    ChainEnd::Returned => continue,
                    ChainEnd::Dropped(_) if !is_certain => continue,
                    ChainEnd::Accepted if !is_certain => ChainEnd::Unknown,
                    end @ (ChainEnd::Accepted | ChainEnd::Dropped(_) | ChainEnd::Unknown) => end,
                },
                (NftVerdict::Goto(to), is_certain) => match self.target(name, &to, depth) {
                    ChainEnd::Dropped(_) if !is_certain => continue,
                    end if is_certain => end,
                    ChainEnd::Accepted | ChainEnd::Dropped(_) | ChainEnd::Returned | ChainEnd::Unknown => {
                        ChainEnd::Unknown
                    }
                },
            };
            return end;
        }
        ChainEnd::Returned
    }

    fn target(&self, (table, _): &TableItem, to: &str, depth: usize) -> ChainEnd {
        let name = (table.clone(), to.to_owned());
        match self.rules.chains.get(&name) {
            Some(chain) if depth < DEEPEST => self.end(&name, chain, depth + 1),
            _ => ChainEnd::Unknown,
        }
    }
}
