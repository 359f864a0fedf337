//! The rules of `iptables-legacy`: tables of the kernel that nftables does not list. Only the program of that name can list them.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
    process::Command,
};

use super::{
    legacy_rule::LegacyRule,
    ruleset::{BaseChain, ForeignRule, ForeignRuleset, RuleBody, TableItem},
};

/// The names of the tables of each family, and the programs that list their rules: on machines without nftables, the second one.
const FAMILIES: [(&str, &str, [&str; 2]); 2] = [
    ("iptables-legacy", "ip_tables_names", ["iptables-legacy-save", "iptables-save"]),
    ("ip6tables-legacy", "ip6_tables_names", ["ip6tables-legacy-save", "ip6tables-save"]),
];
/// A daemon may have no path.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// The chains at which the kernel starts, with their hooks (`NF_INET_*`).
const HOOKS: [(&str, u32); 4] = [("PREROUTING", 0), ("INPUT", 1), ("FORWARD", 2), ("POSTROUTING", 4)];

/// The tables of `iptables-legacy` that exist, one text for each address family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LegacyTables([String; 2]);

impl LegacyTables {
    pub(crate) fn observe() -> Self {
        let names =
            |(_, file, _)| fs::read_to_string(Path::new("/proc/thread-self/net").join(file)).unwrap_or_default();
        Self(FAMILIES.map(names))
    }

    #[cfg(test)]
    pub(crate) fn of(names: [&str; 2]) -> Self {
        Self(names.map(str::to_owned))
    }

    /// Whether there are tables that can drop packets.
    pub(crate) fn can_drop(&self) -> bool {
        self.0.iter().any(|names| can_drop(names))
    }
}

/// Tables other than `nat` drop packets.
fn can_drop(names: &str) -> bool {
    names.lines().any(|name| name != "nat")
}

/// Returns the rules of each family with such tables. `None` for one that no program lists.
pub(super) fn read() -> io::Result<Vec<Option<ForeignRuleset>>> {
    let tables = LegacyTables::observe().0;
    let with_tables = FAMILIES.iter().zip(tables).filter(|(_, names)| can_drop(names));
    with_tables.map(|((family, _, programs), _)| Ok(list(programs)?.map(|rules| ruleset(family, &rules)))).collect()
}

fn list(programs: &[&str]) -> io::Result<Option<String>> {
    for path in programs.iter().flat_map(|program| DIRECTORIES.map(|directory| Path::new(directory).join(program))) {
        match Command::new(path).env_clear().output() {
            Ok(listed) if listed.status.success() => {
                let rules = String::from_utf8_lossy(&listed.stdout).into_owned();
                if is_legacy(&rules) {
                    return Ok(Some(rules));
                }
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The first line names the version, and nftables if the program uses that.
fn is_legacy(rules: &str) -> bool {
    rules.lines().next().is_some_and(|first| first.starts_with("# Generated") && !first.contains("nf_tables"))
}

/// Parses what `iptables-save` prints.
pub(super) fn ruleset(family: &'static str, listed: &str) -> ForeignRuleset {
    let mut rules = ForeignRuleset { family, ..ForeignRuleset::default() };
    let mut table = "";
    for line in listed.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':').filter(|_| table != "nat") {
            let mut words = chain.split(' ');
            let (name, policy) = (words.next().unwrap_or_default(), words.next());
            let hook = HOOKS.iter().find(|(chain, _)| *chain == name);
            let base = hook.map(|(_, hook)| BaseChain { hook: *hook, drops: policy == Some("DROP") });
            rules.chains.entry(item(table, name)).or_default().base = base;
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) {
            // `nat` drops nothing, and has no chains here.
            if let Some(chain) = rules.chains.get_mut(&item(table, chain)) {
                let handle = u64::try_from(chain.rules.len()).unwrap_or_default() + 1;
                let body = RuleBody::Legacy(LegacyRule::parse(rule));
                chain.rules.push(ForeignRule { handle, body, comment: None });
            }
        }
    }
    rules
}

fn item(table: &str, chain: &str) -> TableItem {
    (table.to_owned(), chain.to_owned())
}
