//! When objects leave a cluster that is not ready, and when they return to it.
//!
//! 1. A cluster is lost for a policy once its condition `Ready` has not been `True` for `failover.after`. It has recovered once it has been `True` for as
//!    long.
//! 2. Nothing leaves or returns while most clusters are not ready: then the network of the fleet itself is likely to be the cause.
//! 3. Nothing leaves a cluster whose agent has `--rescheduling-enabled=false`, neither because it is lost nor to return to another one.
//! 4. Nothing leaves or returns before each agent could renew its Lease once since this replica began: conditions that it finds may be outdated.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use keelway_api::duration::Span;

use crate::{
    CandidateCluster, FailoverPolicy, FailoverRecovery, FleetState, LeaveCause, PlacedCluster, Rejection,
    names::AGENT_LEASE_SECONDS,
};

/// Up to this number of clusters that are not ready, each one is regarded as failed by itself.
const FEW: usize = 2;

/// The time, as decisions know it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FleetClock {
    /// The time of the decision.
    pub now: Timestamp,
    /// The time since which the replica that decides observes the Leases of agents.
    pub observing_since: Timestamp,
}

impl FleetClock {
    /// Returns the time from which conditions are regarded as current.
    fn trusts_from(&self) -> Timestamp {
        later(self.observing_since, SignedDuration::from_secs(AGENT_LEASE_SECONDS.into()))
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Returns the time at which a cluster is lost or has recovered, unless its condition changes before.
pub(crate) fn due(cluster: &CandidateCluster, after: Span) -> Option<Timestamp> {
    let seconds = i64::try_from(after.seconds()).unwrap_or(i64::MAX);
    Some(later(cluster.changed()?, SignedDuration::from_secs(seconds)))
}

impl FleetState {
    /// Whether more than half of all clusters are not ready, and more than two. Clusters that have never reported do not count.
    pub(crate) fn is_disrupted(&self) -> bool {
        let members = self.clusters.values().filter(|cluster| cluster.ready.is_some() && !cluster.is_leaving);
        let (ready, unready): (Vec<_>, Vec<_>) = members.partition(|cluster| cluster.is_ready());
        !unready.is_empty() && (ready.is_empty() || unready.len() > FEW && unready.len() > ready.len())
    }

    /// Whether nothing leaves lost clusters or returns to them.
    pub(crate) fn is_failover_paused(&self) -> bool {
        self.is_disrupted() || self.clock.now < self.clock.trusts_from()
    }

    /// Returns the next time at which another decision may be right although no document changes: a cluster is lost or has recovered then.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let policies = || self.policies.failovers();
        let clusters = self.clusters.values();
        let dues = clusters.flat_map(|cluster| policies().filter_map(|failover| due(cluster, failover.after)));
        let trusted = policies().next().map(|_| self.clock.trusts_from());
        dues.chain(trusted).filter(|time| *time > self.clock.now).min()
    }
}

/// The failover of one object.
pub(crate) struct ObjectFailover<'a> {
    pub(crate) fleet: &'a FleetState,
    pub(crate) policy: &'a FailoverPolicy,
    /// Whether its replicas are divided.
    pub(crate) is_divided: bool,
    /// [`crate::PlacementSpec::lost_clusters`] that are in the fleet.
    pub(crate) left: Vec<&'a str>,
    /// [`FleetState::is_failover_paused`].
    pub(crate) is_paused: bool,
    /// Whether it runs in a cluster that it does not leave to return to another one.
    pub(crate) is_pinned: bool,
}

impl<'a> ObjectFailover<'a> {
    fn cluster(&self, name: &str) -> Option<&'a CandidateCluster> {
        self.fleet.clusters.get(name)
    }

    /// Whether the condition `Ready` of a cluster has been as it is for the time that the policy states.
    fn is_late(&self, cluster: &CandidateCluster) -> bool {
        due(cluster, self.policy.after).is_some_and(|due| due <= self.fleet.clock.now)
    }

    fn has_recovered(&self, name: &str) -> bool {
        self.cluster(name).is_some_and(|cluster| cluster.is_ready() && self.is_late(cluster) && !self.is_paused)
    }

    fn returns(&self) -> bool {
        self.is_divided || self.policy.recovery == FailoverRecovery::Return
    }

    /// Returns why the object has to leave a cluster that it runs in, if it has to.
    pub(crate) fn cause(&self, name: &str) -> Option<LeaveCause> {
        let cluster = self.cluster(name)?;
        let is_lost = !cluster.is_ready() && self.is_late(cluster) && !self.is_paused && !cluster.is_pinned;
        let is_leaving = self.left.contains(&name) && !(self.returns() && self.has_recovered(name));
        let since = cluster.changed().filter(|_| !cluster.is_ready());
        (is_lost || is_leaving).then_some(LeaveCause::Lost { since, max_moves: self.policy.max_moves })
    }

    /// Returns why a cluster cannot run the object because it was lost, or `None`. An object that is not divided may run in a cluster that has not
    /// recovered yet.
    pub(crate) fn rejection(&self, cluster: &CandidateCluster) -> Option<Rejection> {
        let name = cluster.name.as_str();
        if cluster.is_ready() {
            return self.recovering(name).filter(|_| self.is_divided);
        }
        let is_lost = self.is_late(cluster) || self.left.contains(&name);
        cluster.changed().filter(|_| is_lost).map(|since| Rejection::Lost { since: Some(since) })
    }

    /// Returns the verdict on a cluster that is ready again, and to which the object returns later.
    fn recovering(&self, name: &str) -> Option<Rejection> {
        let is_left = self.left.contains(&name) && self.returns() && !self.has_recovered(name);
        let cluster = self.cluster(name).filter(|cluster| is_left && cluster.is_ready())?;
        let until = due(cluster, self.policy.after)?.max(self.fleet.clock.trusts_from());
        // While failover is paused, it is not known when.
        let is_known = until > self.fleet.clock.now;
        Some(if is_known { Rejection::Recovering { until } } else { Rejection::Lost { since: None } })
    }

    /// Returns the clusters that are ready again and to which the object returns later, and the verdict on them.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (&'a str, Rejection)> {
        let left = self.left.iter().filter(|_| !self.is_pinned);
        left.filter_map(|name| Some((*name, self.recovering(name)?)))
    }

    /// Returns the cluster to which the object returns now. Divided replicas return without that: each cluster that can run the object gets some.
    pub(crate) fn home(&self) -> Option<&'a str> {
        let home = self.left.first().copied().filter(|_| self.returns() && !self.is_divided && !self.is_pinned);
        home.filter(|name| self.has_recovered(name))
    }

    /// Returns the clusters to remember, given where the object runs now, and the clusters that it has just left. If it is not divided, the first one is
    /// where it was before all of its failovers, and it is still leaving the others.
    pub(crate) fn remembered(&self, clusters: &[PlacedCluster], leaves: &[String]) -> Vec<String> {
        let mut names = self.left.clone();
        names.extend(leaves.iter().map(String::as_str).filter(|name| !self.left.contains(name)));
        let runs = |name: &str| clusters.iter().any(|cluster| cluster.name == name);
        let matters = |(index, name): &(usize, &str)| match (self.is_divided, self.policy.recovery) {
            (true, _) => !self.has_recovered(name),
            (false, FailoverRecovery::Return) if *index == 0 => !runs(name) || clusters.len() > 1,
            (false, FailoverRecovery::Return | FailoverRecovery::Stay) => runs(name) && clusters.len() > 1,
        };
        names.into_iter().enumerate().filter(matters).map(|(_, name)| name.to_owned()).collect()
    }
}
