//! Why an object runs where it runs, for people.

use core::fmt;

use keelway_api::condition::is_true;
use serde::Serialize;

use crate::{
    CLUSTER_READY, CandidateCluster, FailoverPolicy, PlacedClusterStatus, PlacementSpec, PlacementStatus,
    ResourceAmounts, WORK_APPLIED, WorkloadCluster,
    cluster::is_false,
    failover::due,
    names::{REASON_NOT_SUBMITTED, REASON_TRACKED},
};

/// Why an object runs in some clusters and not in others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementExplanation {
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: String,
    /// The policy that decides, or nothing if annotations do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The pods that the object asks for, while no cluster has room for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    /// What was decided on each cluster, those that run the object first.
    pub clusters: Vec<ClusterExplanation>,
}

/// Why a cluster runs an object or does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterExplanation {
    /// The cluster.
    pub cluster: String,
    /// Whether it runs the object.
    pub runs: bool,
    /// The reason, one CamelCase word.
    pub reason: String,
    /// The reason, a sentence.
    pub message: String,
    /// What the agent reports of the object, if the cluster runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// What the cluster is like now: whether it is ready, and what is free.
    pub now: String,
    /// When the object leaves the cluster, if the cluster is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover: Option<String>,
    /// Whether another orchestrator submits the object in the cluster.
    #[serde(skip_serializing_if = "is_false")]
    pub delegated: bool,
}

impl PlacementExplanation {
    /// Explains a Placement, with the clusters as they are now.
    #[must_use]
    pub fn new(placement: &PlacementSpec, status: Option<&PlacementStatus>, clusters: &[WorkloadCluster]) -> Self {
        let object = &placement.object;
        let runs = |name: &str| placement.clusters.iter().any(|cluster| cluster.name == name);
        let mut explained: Vec<ClusterExplanation> = placement
            .reasons
            .iter()
            .map(|reason| {
                let name = &reason.cluster;
                let reported = status.and_then(|status| status.clusters.iter().find(|one| one.name == *name));
                let found = clusters.iter().find(|cluster| cluster.metadata.name.as_ref() == Some(name));
                ClusterExplanation {
                    cluster: name.clone(),
                    runs: runs(name),
                    reason: reason.reason.clone(),
                    message: reason.message.clone(),
                    progress: runs(name).then(|| progress(reported)),
                    now: now(found),
                    failover: placement.failover.filter(|_| runs(name)).zip(found).and_then(waits_for_failover),
                    delegated: placement.clusters.iter().any(|placed| placed.delegated && placed.name == *name),
                }
            })
            .collect();
        explained.sort_by_key(|one| !one.runs);
        Self {
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            policy: placement.policy.clone(),
            needs: placement.needs.clone(),
            clusters: explained,
        }
    }

    fn outcome(&self) -> String {
        let names: Vec<&str> = self.clusters.iter().filter(|one| one.runs).map(|one| one.cluster.as_str()).collect();
        match (names.as_slice(), &self.needs) {
            ([], Some(needs)) => {
                format!("No cluster runs it: it asks for {needs}, and no cluster that may run it has room.")
            }
            ([], None) if self.clusters.is_empty() => "No cluster runs it: the fleet had no cluster.".to_owned(),
            ([], None) => "No cluster runs it.".to_owned(),
            (names, _) if self.clusters.iter().any(|one| one.delegated) => {
                format!("It is delegated: another orchestrator submits it in {}.", names.join(", "))
            }
            (names, _) => format!("It runs in {}.", names.join(", ")),
        }
    }
}

impl fmt::Display for PlacementExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in the namespace {namespace}")?;
        }
        match &self.policy {
            Some(policy) => write!(f, ": the SchedulePolicy {policy} decides. ")?,
            None => f.write_str(": its annotations decide. ")?,
        }
        writeln!(f, "{}", self.outcome())?;
        self.clusters.iter().try_for_each(|cluster| write!(f, "\n{cluster}\n"))
    }
}

impl fmt::Display for ClusterExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, runs, reason, message, progress, now, failover, delegated: _ } = self;
        let verb = if *runs { "runs it" } else { "does not run it" };
        write!(f, "{cluster} {verb} ({reason}): {message}.")?;
        if let Some(progress) = progress {
            write!(f, " {progress}.")?;
        }
        write!(f, " Now: {now}.")?;
        failover.iter().try_for_each(|failover| write!(f, " {failover}."))
    }
}

/// Returns what the agent of a cluster reports of the object.
fn progress(reported: Option<&PlacedClusterStatus>) -> String {
    let Some(reported) = reported else { return "The agent has not reported yet".to_owned() };
    let applied = reported.conditions.iter().find(|condition| condition.type_ == WORK_APPLIED);
    match (applied, reported.replicas, reported.ready_replicas) {
        (None, _, _) => "The agent has not reported yet".to_owned(),
        (Some(applied), _, _) if applied.reason == REASON_NOT_SUBMITTED => {
            format!("It is not there yet ({REASON_NOT_SUBMITTED}): {}", applied.message)
        }
        (Some(applied), Some(replicas), ready) if applied.reason == REASON_TRACKED => {
            format!("The agent tracks it, and {} of {replicas} replicas are ready", ready.unwrap_or(0))
        }
        (Some(applied), None, _) if applied.reason == REASON_TRACKED => "The agent tracks it".to_owned(),
        (Some(applied), _, _) if applied.status != "True" => {
            format!("It is not applied ({}): {}", applied.reason, applied.message)
        }
        (Some(_), Some(replicas), ready) => {
            format!("The agent has applied it, and {} of {replicas} replicas are ready", ready.unwrap_or(0))
        }
        (Some(_), None, _) => "The agent has applied it".to_owned(),
    }
}

/// Returns when an object leaves a cluster, if the cluster is not ready.
fn waits_for_failover((failover, cluster): (FailoverPolicy, &WorkloadCluster)) -> Option<String> {
    let cluster = CandidateCluster::read(cluster);
    let due = due(&cluster, failover.after).filter(|_| !cluster.is_ready() && !cluster.is_pinned)?;
    Some(format!(
        "WaitsForFailover: the object moves at {due} if the cluster is not ready by then, another cluster can run the object, and most clusters are ready"
    ))
}

/// Returns what a cluster is like.
fn now(cluster: Option<&WorkloadCluster>) -> String {
    let Some(cluster) = cluster else { return "the fleet has no such cluster".to_owned() };
    let status = cluster.status.as_ref();
    let is_ready = status.is_some_and(|status| is_true(&status.conditions, CLUSTER_READY));
    let ready = if is_ready { "ready" } else { "not ready" };
    let cordoned = match (cluster.spec.drain, cluster.spec.unschedulable) {
        (Some(_), _) => ", being drained",
        (None, true) => ", cordoned",
        (None, false) => "",
    };
    let Some(capacity) = status.and_then(|status| status.capacity.as_ref()) else {
        return format!("{ready}{cordoned}, and what is free is not known");
    };
    let free = ResourceAmounts::available(&capacity.free).readable();
    let nodes = if capacity.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", capacity.nodes) };
    format!("{ready}{cordoned}, {nodes}, free together: {free}")
}
