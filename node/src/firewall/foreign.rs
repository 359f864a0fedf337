//! Rules of other programs that drop the worker's packets, found by following packets through them.

mod docker;
mod expressions;
mod legacy;
mod legacy_rule;
mod probe;
mod ruleset;
mod sets;
#[cfg(test)]
mod tests;
mod walk;

use std::{collections::BTreeSet, io};

use super::{
    FirewallError, dump,
    encode::{self, IpFamily, NftObjectKind, list_request, text},
    leftovers::TABLES,
    open,
    seen::{self, number},
};
pub(super) use docker::is_ours;
pub(crate) use legacy::LegacyTables;
pub(crate) use probe::{ProbePacket, ProbeWay};
pub(super) use ruleset::comment;
use ruleset::{ForeignRuleset, TableItem, find};
use sets::NftSet;
pub(crate) use walk::DroppingChain;
use walk::dropping_chain;

/// `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];
/// A larger set counts as unknown.
const LARGEST_SET: usize = 8192;

/// The rules of other programs at one moment.
#[derive(Debug)]
pub(crate) struct ForeignRules {
    families: Vec<ForeignRuleset>,
    /// Whether there are rules of `iptables-legacy` that no program lists.
    pub(crate) has_unlisted: bool,
}

impl ForeignRules {
    /// Reads the rules. Returns `None` if they changed meanwhile.
    pub(crate) fn read() -> Result<Option<Self>, FirewallError> {
        let before = generation();
        let families: io::Result<Vec<_>> =
            FAMILIES.into_iter().map(|(number, name)| read_family(number, name)).collect();
        if generation() != before {
            return Ok(None);
        }
        let legacy = legacy::read().map_err(FirewallError::Legacy)?;
        let has_unlisted = legacy.iter().any(Option::is_none);
        let families = families.map_err(FirewallError::Socket)?.into_iter().chain(legacy.into_iter().flatten());
        Ok(Some(Self { families: families.collect(), has_unlisted }))
    }

    /// Returns the chain that drops the packet for certain.
    pub(crate) fn dropping_chain(&self, packet: &ProbePacket) -> Option<DroppingChain> {
        let other = match packet.family() {
            IpFamily::V4 => ["ip6", "ip6tables-legacy"],
            IpFamily::V6 => ["ip", "iptables-legacy"],
        };
        let applies = |rules: &&ForeignRuleset| !other.contains(&rules.family);
        self.families.iter().filter(applies).find_map(|rules| dropping_chain(rules, packet))
    }
}

/// Returns the number of the ruleset, which changes with each change of a rule. `None`: it cannot be read.
pub(crate) fn generation() -> Option<u32> {
    let ask = || -> io::Result<Option<u32>> {
        let socket = open()?;
        socket.send(&encode::generation_request(), 0)?;
        let (datagram, _) = socket.recv_from_full()?;
        let (messages, _) = encode::listed(&datagram);
        // `NFTA_GEN_ID`
        Ok(messages.first().and_then(|message| number(find(message, 1)?)))
    };
    ask().ok().flatten()
}

fn read_family(family: u8, name: &'static str) -> io::Result<ForeignRuleset> {
    let mut rules = ForeignRuleset { family: name, ..ForeignRuleset::default() };
    for message in dump(&open()?, &list_request(family, NftObjectKind::Chain))? {
        rules.note_chain(&message);
    }
    rules.chains.retain(|(table, _), _| !TABLES.contains(&table.as_str()));
    // Only tables with chains that packets pass are read.
    let based = rules.chains.iter().filter(|(_, chain)| chain.base.is_some());
    let tables: BTreeSet<String> = based.map(|((table, _), _)| table.clone()).collect();
    rules.chains.retain(|(table, _), _| tables.contains(table));
    for table in &tables {
        for message in dump(&open()?, &encode::rules_request(family, table))? {
            rules.note_rule(&message);
        }
    }
    for message in dump(&open()?, &encode::sets_request(family))? {
        let of_set = |attribute| find(&message, attribute);
        let (Some(table), Some(name)) = (of_set(1).map(seen::text), of_set(2).map(seen::text)) else { continue };
        if tables.contains(&table) {
            let flags = of_set(3).and_then(number).unwrap_or_default();
            let set = read_set(family, &(table.clone(), name.clone()), flags)?;
            drop(rules.sets.insert((table, name), set));
        }
    }
    Ok(rules)
}

fn read_set(family: u8, (table, name): &TableItem, flags: u32) -> io::Result<NftSet> {
    let mut set = NftSet { flags, ..NftSet::default() };
    let socket = open()?;
    socket.send(&encode::elements_request(family, &[text(1, table), text(2, name)].concat()), 0)?;
    while set.elements.len() <= LARGEST_SET {
        let (datagram, _) = socket.recv_from_full()?;
        let (messages, end) = encode::listed(&datagram);
        for message in &messages {
            set.note(message);
        }
        match end {
            None => {}
            Some(Ok(())) => {
                set.is_whole = true;
                return Ok(set);
            }
            Some(Err(errno)) => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
    set.elements.clear();
    Ok(set)
}
