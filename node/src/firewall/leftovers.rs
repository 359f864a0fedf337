//! Finds what kubelet, kube-proxy and CNI plugins left in the firewall. Pure.

use std::collections::BTreeSet;

use super::{
    TABLE,
    seen::{ChainName, FirewallNames, Ruleset, TableName},
};

/// Tables that only workers have: the worker's own, kube-proxy's, and those of the plugins `portmap` and `bridge`.
pub(super) const TABLES: [&str; 4] = [TABLE, "kube-proxy", "cni_hostport", "cni_plugins_masquerade"];
/// Prefixes of chains of kubelet, kube-proxy and plugins in the tables of `iptables`.
const PREFIXES: [&str; 2] = ["KUBE-", "CNI-"];
/// Tables that `iptables` creates when it first accesses them.
const OF_IPTABLES: [&str; 5] = ["filter", "mangle", "nat", "raw", "security"];

/// One object to remove. Removals are ordered so that no object is removed while another one refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Removal {
    /// A rule of another program's chain that jumps to a removed chain.
    Rule(ChainName, u64),
    /// All rules of a chain.
    Rules(ChainName),
    /// A chain without rules.
    Chain(ChainName),
    /// A table with its content.
    Table(TableName),
}

/// Returns what to remove of a family. What existed `before` stays, and so does what other programs added since.
pub(super) fn leftovers(before: &FirewallNames, now: &Ruleset) -> Vec<Removal> {
    let mut removals = Vec::new();
    for table in &now.tables {
        let is_new = !before.tables.contains(table);
        if is_new && TABLES.contains(&table.name.as_str()) {
            removals.push(Removal::Table(table.clone()));
        } else {
            removals.extend(of_table(before, now, table, is_new));
        }
    }
    removals
}

/// Returns what to remove of a table that other programs use, too.
fn of_table(before: &FirewallNames, now: &Ruleset, table: &TableName, is_new: bool) -> Vec<Removal> {
    let in_table = |chain: &&ChainName| chain.table == table.name && chain.family == table.family;
    let chains: BTreeSet<&ChainName> = now.chains.keys().filter(in_table).collect();
    let is_ours = |chain: &&ChainName| {
        !before.chains.contains(*chain) && PREFIXES.iter().any(|prefix| chain.name.starts_with(prefix))
    };
    let ours: BTreeSet<&ChainName> = chains.iter().copied().filter(is_ours).collect();
    let others = || now.rules.iter().filter(|rule| in_table(&&rule.chain) && !ours.contains(&rule.chain));
    let leads_to_ours = |targets: &BTreeSet<String>| ours.iter().any(|chain| targets.contains(&chain.name));
    // A new chain whose rules all jump to our chains was created for them.
    let is_hollow = |chain: &&ChainName| {
        now.chains.get(*chain) == Some(&true)
            && !before.chains.contains(*chain)
            && others().filter(|rule| rule.chain == **chain).all(|rule| leads_to_ours(&rule.targets))
    };
    let is_of_iptables = OF_IPTABLES.contains(&table.name.as_str());
    if is_new && is_of_iptables && chains.iter().all(|chain| is_ours(chain) || is_hollow(chain)) {
        return vec![Removal::Table(table.clone())];
    }
    let rules = others().filter(|rule| rule.is_ours || leads_to_ours(&rule.targets));
    let rules = rules.map(|rule| Removal::Rule(rule.chain.clone(), rule.handle));
    let emptied = ours.iter().map(|chain| Removal::Rules((*chain).clone()));
    rules.chain(emptied).chain(ours.iter().map(|chain| Removal::Chain((*chain).clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{encode::IpFamily, seen::FirewallRule},
        *,
    };

    fn table(name: &str) -> TableName {
        TableName { family: IpFamily::V4, name: name.to_owned() }
    }

    fn chain(name: &str) -> ChainName {
        let (table, name) = name.split_once(' ').unwrap();
        ChainName { family: IpFamily::V4, table: table.to_owned(), name: name.to_owned() }
    }

    /// In `lines`, `filter INPUT*` is a base chain, and `filter INPUT > KUBE-FIREWALL` is a rule.
    fn ruleset(lines: &[&str]) -> Ruleset {
        let mut seen = Ruleset::default();
        for (line, handle) in lines.iter().zip(1..) {
            if let Some((from, to)) = line.split_once(" > ") {
                let targets =
                    [to.to_owned()].into_iter().filter(|to| !["nothing", "own"].contains(&to.as_str())).collect();
                let is_ours = to == "own";
                seen.rules.push(FirewallRule { chain: chain(from), handle, targets, is_ours });
            } else {
                let name = chain(line.trim_end_matches('*'));
                seen.tables.insert(table(&name.table));
                seen.chains.insert(name, line.ends_with('*'));
            }
        }
        seen
    }

    const KUBELETS: [&str; 5] = [
        "filter INPUT*",
        "filter KUBE-FIREWALL",
        "filter INPUT > KUBE-FIREWALL",
        "filter KUBE-FIREWALL > nothing",
        "mangle KUBE-IPTABLES-HINT",
    ];

    #[test]
    fn tables_that_only_workers_use_are_deleted() {
        let now = ruleset(&[&KUBELETS[..], &["kube-proxy services", "keelway-node postrouting*"]].concat());
        let tables = ["filter", "keelway-node", "kube-proxy", "mangle"].map(|name| Removal::Table(table(name)));
        assert_eq!(leftovers(&FirewallNames::default(), &now), tables);
    }

    #[test]
    fn earlier_rules_stay() {
        let before = ruleset(&["filter INPUT*", "kube-proxy services", "nat KUBE-SERVICES"]);
        let now = ruleset(&[&KUBELETS[..4], &["kube-proxy services", "nat KUBE-SERVICES"]].concat());
        let removals = [
            Removal::Rule(chain("filter INPUT"), 3),
            Removal::Rules(chain("filter KUBE-FIREWALL")),
            Removal::Chain(chain("filter KUBE-FIREWALL")),
        ];
        assert_eq!(leftovers(&before.names(), &now), removals);
        assert_eq!(leftovers(&now.clone().names(), &now), []);
    }

    #[test]
    fn rules_of_others_stay() {
        let now = ruleset(&[&KUBELETS[..4], &["filter INPUT > nothing"]].concat());
        let removals = leftovers(&FirewallNames::default(), &now);
        assert_eq!(removals.first(), Some(&Removal::Rule(chain("filter INPUT"), 3)));
        assert_eq!(removals.last(), Some(&Removal::Chain(chain("filter KUBE-FIREWALL"))));
        let now = ruleset(&["filter INPUT*", "filter DOCKER", "other chain"]);
        assert_eq!(leftovers(&FirewallNames::default(), &now), []);
    }

    #[test]
    fn rules_of_the_worker_in_chains_of_others_are_removed() {
        let now = ruleset(&["filter DOCKER-USER", "filter DOCKER-USER > own", "filter DOCKER-USER > nothing"]);
        assert_eq!(leftovers(&now.clone().names(), &now), [Removal::Rule(chain("filter DOCKER-USER"), 2)]);
    }
}
