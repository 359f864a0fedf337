//! Workload clusters as candidates for an object, and the filters and scores that each explain themselves.

use alloc::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use crate::{
    CLUSTER_READY, ClusterDrain, ClusterTaint, PercentageShare, Rejection, TaintEffect, WorkloadCluster,
    WorkloadClusterStatus, failover::ObjectFailover, names::NAME_LABEL, policies::ParsedPolicy,
};

/// What a decision reads of a workload cluster.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, which the Cluster states")]
pub struct CandidateCluster {
    /// The name.
    pub name: String,
    /// The labels, with the name.
    pub labels: BTreeMap<String, String>,
    /// Whether the cluster adds nodes while pods wait.
    pub is_autoscaled: bool,
    /// Whether the cluster is cordoned.
    pub is_cordoned: bool,
    /// How the cluster is drained, if it is.
    pub drain: Option<ClusterDrain>,
    /// Whether the cluster is being removed from the fleet.
    pub is_leaving: bool,
    /// Whether another orchestrator submits the objects of the cluster.
    pub is_delegated: bool,
    /// Whether failover moves nothing away from the cluster.
    pub is_pinned: bool,
    /// The taints.
    pub taints: Vec<ClusterTaint>,
    /// The condition `Ready`, if it was ever reported.
    pub ready: Option<Condition>,
}

impl CandidateCluster {
    /// Reads a cluster. Every cluster has the label with its name, also before its controller has written it.
    #[must_use]
    pub fn read(cluster: &WorkloadCluster) -> Self {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let mut labels = cluster.metadata.labels.clone().unwrap_or_default();
        labels.insert(NAME_LABEL.to_owned(), name.clone());
        let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        let is_off = |flag: fn(&WorkloadClusterStatus) -> Option<bool>| {
            cluster.status.as_ref().and_then(flag).is_some_and(|is_enabled| !is_enabled)
        };
        Self {
            name,
            labels,
            is_autoscaled: cluster.spec.autoscaled,
            is_cordoned: cluster.spec.unschedulable,
            drain: cluster.spec.drain,
            is_leaving: cluster.metadata.deletion_timestamp.is_some(),
            is_delegated: is_off(|status| status.orchestration_enabled),
            is_pinned: is_off(|status| status.rescheduling_enabled),
            taints: cluster.spec.taints.clone(),
            ready: conditions.find(|condition| condition.type_ == CLUSTER_READY).cloned(),
        }
    }

    /// Whether the cluster is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.status == "True")
    }

    /// Returns since when the cluster has been ready, or has not been ready. It is `None` if that was never reported.
    pub(crate) fn changed(&self) -> Option<Timestamp> {
        self.ready.as_ref().map(|ready| ready.last_transition_time.0)
    }

    /// Returns the first taint with this effect that a policy does not tolerate.
    fn taint(&self, effect: TaintEffect, ask: &ClusterAsk<'_>) -> Option<&ClusterTaint> {
        let tolerations = ask.policy.map_or(&[][..], |policy| &policy.spec.tolerations);
        let is_tolerated = |taint: &ClusterTaint| tolerations.iter().any(|toleration| toleration.tolerates(taint));
        self.taints.iter().find(|taint| taint.effect == effect && !is_tolerated(taint))
    }
}

/// The requirements that clusters must meet to run an object.
pub(crate) struct ClusterAsk<'a> {
    /// The clusters that an annotation names, if one decides.
    pub(crate) named: Option<Vec<&'a str>>,
    /// The policy, if one decides.
    pub(crate) policy: Option<&'a ParsedPolicy>,
    /// The label that clusters must have, if the object is spread.
    pub(crate) topology: Option<&'a str>,
    /// The shares of domains, if replicas are divided by them.
    pub(crate) shares: &'a [PercentageShare],
    /// The failover of the object, if it has one.
    pub(crate) failover: Option<&'a ObjectFailover<'a>>,
    /// The cluster to which the object returns.
    pub(crate) home: Option<&'a str>,
}

impl ClusterAsk<'_> {
    /// Returns how urgently the object has to leave a cluster: a lost one before one that is being drained.
    fn urgency(&self, cluster: &CandidateCluster) -> usize {
        let is_lost = self.failover.is_some_and(|failover| failover.cause(&cluster.name).is_some());
        if is_lost { 2 } else { usize::from(cluster.drain.is_some()) }
    }
}

/// A step that rejects clusters.
struct CandidateFilter {
    /// Whether clusters that run the object already pass: what runs there stays.
    spares_current: bool,
    check: fn(&ClusterAsk<'_>, &CandidateCluster) -> Option<Rejection>,
}

/// The filters, in order. The first that rejects a cluster is its reason.
const FILTERS: [CandidateFilter; 12] = [
    CandidateFilter { spares_current: false, check: named },
    CandidateFilter { spares_current: false, check: selected },
    CandidateFilter { spares_current: false, check: ordered },
    CandidateFilter { spares_current: false, check: topology },
    CandidateFilter { spares_current: false, check: share },
    CandidateFilter { spares_current: false, check: spread_over_delegated },
    CandidateFilter { spares_current: false, check: leaving },
    CandidateFilter { spares_current: true, check: lost },
    CandidateFilter { spares_current: true, check: draining },
    CandidateFilter { spares_current: true, check: cordoned },
    CandidateFilter { spares_current: true, check: tainted },
    CandidateFilter { spares_current: true, check: ready },
];

/// Returns why a cluster cannot run an object, or `None`.
pub(crate) fn rejection(ask: &ClusterAsk<'_>, cluster: &CandidateCluster, is_current: bool) -> Option<Rejection> {
    let mut steps = FILTERS.iter().filter(|step| !(is_current && step.spares_current));
    steps.find_map(|step| (step.check)(ask, cluster))
}

fn named(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    let names = ask.named.as_ref()?;
    (!names.contains(&cluster.name.as_str())).then_some(Rejection::NotNamed)
}

fn selected(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    let policy = ask.policy?;
    (!policy.selects_cluster(&cluster.labels)).then(|| Rejection::NotSelected { policy: policy.name.clone() })
}

fn ordered(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    let policy = ask.policy?;
    policy.place_of(&cluster.labels).is_none().then(|| Rejection::NotOrdered { policy: policy.name.clone() })
}

fn topology(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    let key = ask.topology?;
    (!cluster.labels.contains_key(key)).then(|| Rejection::NoTopologyLabel { key: key.to_owned() })
}

fn share(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    let domain = cluster.labels.get(ask.topology?)?;
    let has = ask.shares.iter().any(|share| share.topology_value == *domain && share.percentage > 0);
    (!ask.shares.is_empty() && !has).then(|| Rejection::NoShare { domain: domain.clone() })
}

fn spread_over_delegated(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    (cluster.is_delegated && ask.topology.is_some()).then_some(Rejection::SpreadRefused)
}

fn leaving(_: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    cluster.is_leaving.then_some(Rejection::Leaving)
}

fn lost(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    ask.failover?.rejection(cluster)
}

fn draining(_: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    cluster.drain.map(|_| Rejection::Draining)
}

fn cordoned(_: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    cluster.is_cordoned.then_some(Rejection::Cordoned)
}

fn tainted(ask: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    cluster.taint(TaintEffect::NoSchedule, ask).map(|taint| Rejection::Tainted { taint: taint.clone() })
}

fn ready(_: &ClusterAsk<'_>, cluster: &CandidateCluster) -> Option<Rejection> {
    match &cluster.ready {
        Some(_) if cluster.is_ready() => None,
        Some(ready) => Some(Rejection::NotReady { message: ready.message.clone() }),
        None => Some(Rejection::NotReady { message: String::new() }),
    }
}

/// A step that prefers clusters over others. Later steps count only between clusters that are equal in all earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreStep {
    /// The object left the cluster when it was lost, and returns.
    Home,
    /// The object runs there already.
    Current,
    /// The policy names the cluster earlier.
    Order,
    /// The policy tolerates every taint of the cluster with the effect `PreferNoSchedule`.
    Untainted,
    /// The name of the cluster comes first.
    Name,
}

/// Returns how good a cluster is in a step: less is better. The last argument is whether it runs the object.
type ClusterScore = fn(&ClusterAsk<'_>, &CandidateCluster, bool) -> usize;

/// The scores, in order.
const SCORES: [(ScoreStep, ClusterScore); 4] = [
    (ScoreStep::Home, |ask, cluster, _| usize::from(ask.home != Some(cluster.name.as_str()))),
    (ScoreStep::Current, |ask, cluster, is_current| if is_current { ask.urgency(cluster) } else { usize::MAX }),
    (ScoreStep::Order, |ask, cluster, _| {
        ask.policy.and_then(|policy| policy.place_of(&cluster.labels)).unwrap_or(usize::MAX)
    }),
    (ScoreStep::Untainted, |ask, cluster, _| usize::from(cluster.taint(TaintEffect::PreferNoSchedule, ask).is_some())),
];

/// The scores of a cluster: a list that is less if the cluster is better.
pub(crate) type ClusterScores = [usize; SCORES.len()];

/// Returns the scores of a cluster, given whether it runs the object.
pub(crate) fn scores(ask: &ClusterAsk<'_>, cluster: &CandidateCluster, is_current: bool) -> ClusterScores {
    SCORES.map(|(_, score)| score(ask, cluster, is_current))
}

/// Returns the step in which one cluster is better than another.
pub(crate) fn deciding_step(better: ClusterScores, worse: ClusterScores) -> ScoreStep {
    let differs = SCORES.iter().zip(better.iter().zip(worse)).find(|(_, (better, worse))| **better != *worse);
    differs.map_or(ScoreStep::Name, |((step, _), _)| *step)
}
