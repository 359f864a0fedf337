//! Finds the chains through which forwarded packets pass.

use std::{collections::BTreeMap, fs};

use super::{
    FirewallError, dump,
    encode::{NftObjectKind, attributes, list_request},
    open,
    seen::{number, text},
};

/// `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];
/// `NF_INET_FORWARD`
const FORWARD: u32 = 2;
/// Lists the tables of the older `iptables`, of which `filter` has a chain for forwarded packets.
const OLDER: [(&str, &str); 2] =
    [("/proc/thread-self/net/ip_tables_names", "iptables"), ("/proc/thread-self/net/ip6_tables_names", "ip6tables")];

/// Returns the names of all chains at the hook `forward`, such as `inet firewalld filter_FORWARD`.
pub(crate) fn forward_chains() -> Result<Vec<String>, FirewallError> {
    let mut chains = Vec::new();
    for (family, name) in FAMILIES {
        let list = || dump(&open()?, &list_request(family, NftObjectKind::Chain));
        let messages = list().map_err(FirewallError::Socket)?;
        chains.extend(
            messages.iter().filter_map(|message| forward_chain(message)).map(|chain| format!("{name} {chain}")),
        );
    }
    let has_filter =
        |path: &str| fs::read_to_string(path).is_ok_and(|tables| tables.lines().any(|table| table == "filter"));
    chains.extend(OLDER.iter().filter(|(path, _)| has_filter(path)).map(|(_, name)| format!("{name} filter FORWARD")));
    Ok(chains)
}

/// Returns table and name of a chain, if it is at the hook `forward`.
fn forward_chain(message: &[u8]) -> Option<String> {
    let of: BTreeMap<u16, &[u8]> = attributes(message).collect();
    let hook = attributes(of.get(&4)?).find_map(|(kind, value)| if kind == 1 { number(value) } else { None });
    (hook == Some(FORWARD)).then_some(())?;
    Some(format!("{} {}", text(of.get(&1)?), text(of.get(&3)?)))
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::isolated::{run, within};

    #[test]
    fn only_chains_for_forwarded_packets_are_listed() {
        const RULES: &str = "
            table inet others { chain forward { type filter hook forward priority 0; }; chain input { type filter hook input priority 0; }; }
            table ip filter { chain FORWARD { type filter hook forward priority 0; }; chain DOCKER { }; }
            table ip6 nat { chain POSTROUTING { type nat hook postrouting priority 0; }; }";
        within(UnshareFlags::NEWNET, || {
            assert_eq!(forward_chains().unwrap(), Vec::<String>::new());
            run("nft", &[RULES]);
            assert_eq!(forward_chains().unwrap(), ["inet others forward", "ip filter FORWARD"]);
        });
    }
}
