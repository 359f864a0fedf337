//! Tables, chains and rules, as the kernel lists them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    encode::{IpFamily, NftObjectKind, attributes},
    foreign::{comment, is_ours},
};

/// `NF_ACCEPT`
const ACCEPT: u32 = 1;

/// The name of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TableName {
    pub(super) family: IpFamily,
    pub(super) name: String,
}

/// The name of a chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ChainName {
    pub(super) family: IpFamily,
    pub(super) table: String,
    pub(super) name: String,
}

/// The names of the tables and chains of a ruleset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirewallNames {
    #[serde(default)]
    pub(super) tables: BTreeSet<TableName>,
    #[serde(default)]
    pub(super) chains: BTreeSet<ChainName>,
}

impl FirewallNames {
    pub(super) fn extend(&mut self, other: Self) {
        self.tables.extend(other.tables);
        self.chains.extend(other.chains);
    }

    /// Returns the chains with one of these names, such as `ip filter ts-input`.
    pub(crate) fn chains_named(&self, names: &[&str]) -> Vec<String> {
        let found = self.chains.iter().filter(|chain| names.contains(&chain.name.as_str()));
        let family = |family| if family == IpFamily::V4 { "ip" } else { "ip6" };
        found.map(|chain| format!("{} {} {}", family(chain.family), chain.table, chain.name)).collect()
    }
}

/// A rule, reduced to the chains that it jumps to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FirewallRule {
    pub(super) chain: ChainName,
    pub(super) handle: u64,
    /// The chains of the same table that the rule jumps to.
    pub(super) targets: BTreeSet<String>,
    /// Whether the worker added it to another program's chain.
    pub(super) is_ours: bool,
}

/// All tables, chains and rules of a family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ruleset {
    pub(super) tables: BTreeSet<TableName>,
    /// For each chain, whether it is a base chain whose policy is to accept.
    pub(super) chains: BTreeMap<ChainName, bool>,
    pub(super) rules: Vec<FirewallRule>,
}

impl Ruleset {
    /// Adds an object from the attributes of one message of a list. Unknown attributes are skipped.
    pub(super) fn note(&mut self, family: IpFamily, kind: NftObjectKind, message: &[u8]) {
        let of: BTreeMap<u16, &[u8]> = attributes(message).collect();
        let word = |attribute: u16| of.get(&attribute).map(|value| text(value));
        let chain = |table, name| Some(ChainName { family, table: word(table)?, name: word(name)? });
        match kind {
            NftObjectKind::Table => self.tables.extend(word(1).map(|name| TableName { family, name })),
            NftObjectKind::Chain => {
                let accepts = of.get(&5).and_then(|policy| number(policy)) == Some(ACCEPT);
                self.chains.extend(chain(1, 3).map(|name| (name, of.contains_key(&4) && accepts)));
            }
            NftObjectKind::Rule => {
                let handle = of.get(&3).and_then(|handle| handle.first_chunk()).map(|bytes| u64::from_be_bytes(*bytes));
                let expressions = of.get(&4).copied().unwrap_or_default();
                let targets = attributes(expressions).filter_map(|(_, expression)| target(expression)).collect();
                let rule = chain(1, 2).zip(handle);
                let is_ours = of.get(&7).and_then(|data| comment(data)).is_some_and(|comment| is_ours(&comment));
                self.rules.extend(rule.map(|(chain, handle)| FirewallRule { chain, handle, targets, is_ours }));
            }
        }
    }

    /// Returns the names of its tables and chains.
    pub(super) fn names(self) -> FirewallNames {
        FirewallNames { tables: self.tables, chains: self.chains.into_keys().collect() }
    }
}

/// Returns the chain that an expression jumps to: `immediate` with a verdict that names a chain.
fn target(expression: &[u8]) -> Option<String> {
    let within = |bytes, wanted| attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value));
    let is_verdict = within(expression, 1).is_some_and(|name| text(name) == "immediate");
    let value = within(within(expression, 2)?, 2)?;
    is_verdict.then(|| within(within(value, 2)?, 2).map(text))?
}

pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::{
        super::encode::{attribute, number, text},
        *,
    };

    #[test]
    fn jumps_are_distinguished_from_other_rules() {
        let verdict = [number(1, 0xffff_fffd), text(2, "KUBE-FIREWALL")].concat();
        let data = [number(1, 0), attribute(2, &attribute(2, &verdict))].concat();
        let jump = attribute(1, &[text(1, "immediate"), attribute(2, &data)].concat());
        let counter = attribute(1, &[text(1, "counter"), attribute(2, &[0; 24])].concat());
        let rule = |expressions: &[u8]| {
            let head = [text(1, "filter"), text(2, "INPUT"), attribute(3, &9u64.to_be_bytes())].concat();
            [head, attribute(4, expressions)].concat()
        };
        let mut seen = Ruleset::default();
        seen.note(IpFamily::V4, NftObjectKind::Rule, &rule(&[counter.clone(), jump].concat()));
        seen.note(IpFamily::V4, NftObjectKind::Rule, &rule(&counter));
        let [first, second] = seen.rules.as_slice() else { panic!("{seen:?}") };
        assert_eq!((first.handle, first.chain.name.as_str()), (9, "INPUT"));
        assert_eq!(first.targets.iter().collect::<Vec<_>>(), ["KUBE-FIREWALL"]);
        assert!(second.targets.is_empty());
    }

    #[test]
    fn base_chains_are_distinguished_from_others() {
        let mut seen = Ruleset::default();
        let names = [text(1, "filter"), text(3, "INPUT")].concat();
        seen.note(IpFamily::V4, NftObjectKind::Chain, &[names, attribute(4, &[]), number(5, 1)].concat());
        seen.note(IpFamily::V4, NftObjectKind::Chain, &[text(1, "filter"), text(3, "KUBE-FIREWALL")].concat());
        assert_eq!(seen.chains.values().collect::<Vec<_>>(), [&true, &false]);
    }
}
