//! Docker drops forwarded packets of others (the policy of `FORWARD`), and leaves a chain to its user in which they can be accepted.

use super::{
    super::{
        FirewallError, commit,
        encode::{ACCEPT, Batch, EQUAL, IpFamily, match_interface, match_output, verdict},
    },
    ForeignRules,
    ruleset::{ForeignChain, ForeignRule, NftVerdict, RuleBody, TableItem, expressions},
};

/// Docker uses `iptables`, which has no tables of the family `inet`.
const FAMILIES: [(IpFamily, &str); 2] = [(IpFamily::V4, "ip"), (IpFamily::V6, "ip6")];

const TABLE: &str = "filter";
const CHAIN: &str = "DOCKER-USER";
/// Marks the worker's rules in this chain.
const COMMENT: &str = "keelway-node";

/// A change of the chain.
#[derive(Debug, PartialEq, Eq)]
struct DockerRepair {
    /// The handles of the worker's rules, if some of them are missing.
    delete: Vec<u64>,
    /// The rule before which the new rules are inserted. `None`: they are appended.
    before: Option<u64>,
}

/// Whether a comment is that of the worker's rules.
pub(in super::super) fn is_ours(comment: &str) -> bool {
    comment == COMMENT
}

impl ForeignRules {
    /// Accepts packets from and to these interfaces in Docker's chain, if it exists. Rules of the user that come first keep their effect. Returns
    /// whether it changed the chain.
    pub(crate) fn admit_in_docker(&self, interfaces: &[String]) -> Result<bool, FirewallError> {
        let mut has_changed = false;
        for (family, name) in FAMILIES {
            let chain =
                self.families.iter().find(|rules| rules.family == name).and_then(|rules| rules.chains.get(&chain()));
            let Some(repair) = chain.and_then(|chain| repair(chain, 2 * interfaces.len())) else { continue };
            let mut batch = Batch::new(family);
            for handle in repair.delete {
                batch.delete_rule(TABLE, CHAIN, handle);
            }
            for rule in accepted(interfaces) {
                batch.add_commented_rule((TABLE, CHAIN), repair.before, &rule, COMMENT);
            }
            commit("accept the worker's packets in the chain DOCKER-USER", batch)?;
            has_changed = true;
        }
        Ok(has_changed)
    }

    /// Returns the rules as they are after [`Self::admit_in_docker`].
    pub(crate) fn admitted_in_docker(mut self, interfaces: &[String]) -> Self {
        for rules in self.families.iter_mut().filter(|rules| FAMILIES.iter().any(|(_, name)| *name == rules.family)) {
            let Some(found) = rules.chains.get_mut(&chain()) else { continue };
            let Some(repair) = repair(found, 2 * interfaces.len()) else { continue };
            found.rules.retain(|rule| !repair.delete.contains(&rule.handle));
            let at =
                found.rules.iter().position(|rule| Some(rule.handle) == repair.before).unwrap_or(found.rules.len());
            let new = accepted(interfaces).map(|rule| ForeignRule {
                handle: 0,
                body: RuleBody::Nft(expressions(&rule)),
                comment: Some(COMMENT.to_owned()),
            });
            drop(found.rules.splice(at..at, new));
        }
        self
    }
}

fn chain() -> TableItem {
    (TABLE.to_owned(), CHAIN.to_owned())
}

/// Returns the expressions of each rule.
fn accepted(interfaces: &[String]) -> impl Iterator<Item = Vec<u8>> {
    interfaces.iter().flat_map(|interface| {
        [match_interface(EQUAL, interface), match_output(EQUAL, interface)]
            .map(|matches| [matches, verdict(ACCEPT)].concat())
    })
}

/// Decides on a change. Pure. The chain of earlier releases of Docker ends with a rule that returns.
fn repair(chain: &ForeignChain, wanted: usize) -> Option<DockerRepair> {
    let ours = |rule: &&ForeignRule| rule.comment.as_deref().is_some_and(is_ours);
    let delete: Vec<u64> = chain.rules.iter().filter(ours).map(|rule| rule.handle).collect();
    if delete.len() == wanted {
        return None;
    }
    let before = chain.rules.iter().find(|rule| returns(rule)).map(|rule| rule.handle);
    Some(DockerRepair { delete, before })
}

/// Whether the rule returns for every packet.
fn returns(rule: &ForeignRule) -> bool {
    let RuleBody::Nft(expressions) = &rule.body else { return false };
    let mut deciding = expressions.iter().filter(|expression| expression.name != "counter");
    let first = deciding.next();
    first.is_some_and(|first| first.name == "immediate" && first.verdict(2) == Some(NftVerdict::Return))
}
