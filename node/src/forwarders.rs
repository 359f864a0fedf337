//! Other programs for which the machine forwards packets, such as Docker, libvirt or a VPN server.

use std::{collections::BTreeSet, fs};

use serde::{Deserialize, Serialize};

use crate::firewall::{self, FirewallError};

/// The interfaces of this thread's network namespace, after two lines of headings.
const INTERFACES: &str = "/proc/thread-self/net/dev";

/// What programs add that need forwarding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Forwarders {
    /// The names of all interfaces. A machine forwards packets between two of them.
    interfaces: BTreeSet<String>,
    /// The firewall chains for forwarded packets.
    chains: BTreeSet<String>,
}

impl Forwarders {
    pub(crate) fn observe() -> Result<Self, FirewallError> {
        let table = fs::read_to_string(INTERFACES).unwrap_or_default();
        let names = table.lines().skip(2).filter_map(|line| line.split(':').next());
        let chains = firewall::forward_chains()?.into_iter().collect();
        Ok(Self { interfaces: names.map(|name| name.trim().to_owned()).collect(), chains })
    }

    /// Returns what was added since `before`, for people. If `before` is unknown, that is a reason to forward, too.
    pub(crate) fn since(&self, before: Option<&Self>) -> Vec<String> {
        let Some(before) = before else {
            return vec!["an unknown program, because the release that joined did not record any".to_owned()];
        };
        let interfaces = self.interfaces.difference(&before.interfaces).map(|name| format!("interface {name}"));
        interfaces.chain(self.chains.difference(&before.chains).map(|name| format!("firewall chain {name}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::isolated::{run, within};

    #[test]
    fn additions_since_the_join_are_found() {
        within(UnshareFlags::NEWNET, || {
            let before = Forwarders::observe().unwrap();
            assert_eq!(before.interfaces, ["lo".to_owned()].into());
            run("ip", &["link", "add", "docker0", "type", "bridge"]);
            run("nft", &["add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; }"]);
            let now = Forwarders::observe().unwrap();
            assert_eq!(now.since(Some(&before)), ["interface docker0", "firewall chain ip filter FORWARD"]);
            assert_eq!(now.since(Some(&now)), Vec::<String>::new());
            assert_eq!(now.since(None).len(), 1);
        });
    }
}
