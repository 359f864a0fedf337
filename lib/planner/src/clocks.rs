//! Whether this host's clock can be trusted: a certificate is valid from the time of the minting clock, and machines check it by their own
//! clocks.

use alloc::vec::Vec;

use keelway_api::{
    Documents,
    jiff::SignedDuration,
    name::{ClusterId, ClusterRef},
};

use crate::{
    WaitBlocker, WaitSubject,
    plan::{AgentOrder, Plan},
};

/// How far clocks may differ. A certificate is valid from this long before the time at which it is minted.
pub const MOST_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// If this host's clock differs too much from those of most machines, removes what the plan would mint, and waits. `ahead` returns how far
/// the clock of each machine that reports its time is ahead of this host's. It is called only if something is to be minted.
pub fn wait_for_clock(plan: &mut Plan, ahead: impl FnOnce(&Documents) -> Vec<SignedDuration>) {
    let is_grant = |order: &AgentOrder| !matches!(order, AgentOrder::Trust | AgentOrder::Stop);
    if plan.mint.is_empty() && !plan.agents.values().any(is_grant) {
        return;
    }
    let Some(skew) = majority_skew(ahead(&plan.documents)) else { return };
    let owners = plan.mint.iter().filter_map(|request| ClusterId::of_namespace(&request.secret().namespace));
    let owners: Vec<ClusterId> = owners.collect();
    let is_held_up = |id: Option<&ClusterId>| id.is_some_and(|id| owners.contains(id));
    let clusters = plan.documents.clusters.iter().filter(|(_, cluster)| is_held_up(cluster.id()));
    let clusters: Vec<ClusterRef> = clusters.map(|(name, _)| name.clone()).collect();
    for name in &clusters {
        plan.block(name, WaitBlocker::Clock(skew));
    }
    if clusters.is_empty() {
        plan.wait(WaitSubject::Installation, WaitBlocker::Clock(skew));
    }
    plan.mint.clear();
    plan.agents.retain(|_, order| !is_grant(order));
}

/// How far most clocks are ahead. None: at most half of the reported clocks differ too much.
fn majority_skew(mut ahead: Vec<SignedDuration>) -> Option<SignedDuration> {
    let apart = ahead.iter().filter(|ahead| ahead.abs() > MOST_SKEW).count();
    if 2 * apart <= ahead.len() {
        return None;
    }
    ahead.sort_unstable();
    ahead.get(ahead.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn minutes(all: &[i64]) -> Option<i64> {
        majority_skew(all.iter().map(|minutes| SignedDuration::from_mins(*minutes)).collect())
            .map(|skew| skew.as_mins())
    }

    #[test]
    fn most_clocks_decide() {
        assert_eq!(minutes(&[]), None, "nobody tells");
        assert_eq!(minutes(&[5, -5]), None);
        assert_eq!(minutes(&[60]), Some(60));
        assert_eq!(minutes(&[0, 0, 60]), None, "the clock of one machine is wrong");
        assert_eq!(minutes(&[-60, -61, 0]), Some(-60));
        assert_eq!(minutes(&[60, 0]), None, "half of them are not most");
    }

    #[test]
    fn the_message_names_the_clock_that_is_ahead() {
        let text = |minutes| WaitBlocker::Clock(SignedDuration::from_mins(minutes)).to_string();
        assert!(text(60).contains("60 minutes behind the clocks"));
        assert!(text(-7).contains("7 minutes ahead of the clocks"));
    }
}
