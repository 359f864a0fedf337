//! How many Placements and Works there are, by state.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use keelway_fleet::{PLACEMENT_APPLIED, WORK_APPLIED, Work, WorkloadPlacement, names::REASON_NOT_SUBMITTED};

/// The numbers of Placements and Works by state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetCensus {
    /// Placements.
    pub placements: BTreeMap<CensusState, usize>,
    /// Works, by their cluster.
    pub works: BTreeMap<String, BTreeMap<CensusState, usize>>,
    /// Objects that wait for a decision.
    pub pending: usize,
}

/// The state of a Placement or a Work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CensusState {
    /// Each cluster has applied the object.
    Applied,
    /// A cluster reports that it cannot apply the object.
    Failed,
    /// A cluster has not reported yet.
    Pending,
    /// No cluster can run the object.
    Unscheduled,
    /// Another orchestrator has not submitted the object yet in the cluster that was chosen.
    Delegated,
}

impl CensusState {
    /// All states of a Placement.
    pub const PLACEMENT: [Self; 5] = [Self::Applied, Self::Failed, Self::Pending, Self::Unscheduled, Self::Delegated];
    /// All states of a Work.
    pub const WORK: [Self; 3] = [Self::Applied, Self::Failed, Self::Pending];

    /// Returns the label of a metric.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "Applied",
            Self::Failed => "Failed",
            Self::Pending => "Pending",
            Self::Unscheduled => "Unscheduled",
            Self::Delegated => "Delegated",
        }
    }

    /// Returns the state of a Placement.
    #[must_use]
    pub fn of_placement(placement: &WorkloadPlacement) -> Self {
        if placement.spec.clusters.is_empty() {
            return Self::Unscheduled;
        }
        let waiting = if placement.spec.is_delegated() { Self::Delegated } else { Self::Pending };
        let Some(status) = &placement.status else { return waiting };
        if status.clusters.iter().any(|cluster| has_failed(&cluster.conditions)) {
            return Self::Failed;
        }
        let is_current = status.observed_generation == placement.metadata.generation;
        match applied(&status.conditions, PLACEMENT_APPLIED) {
            Some(true) if is_current => Self::Applied,
            Some(_) | None => waiting,
        }
    }

    /// Returns the state of a Work.
    #[must_use]
    pub fn of_work(work: &Work) -> Self {
        let Some(status) = &work.status else { return Self::Pending };
        let is_current = status.observed_generation == work.metadata.generation;
        match applied(&status.conditions, WORK_APPLIED) {
            Some(false) if has_failed(&status.conditions) => Self::Failed,
            Some(true) if is_current => Self::Applied,
            Some(_) | None => Self::Pending,
        }
    }
}

/// Whether a cluster cannot apply an object. That another orchestrator has not submitted it yet is no failure.
fn has_failed(conditions: &[Condition]) -> bool {
    let mut of_work = conditions.iter().filter(|condition| condition.type_ == WORK_APPLIED);
    of_work.any(|condition| condition.status == "False" && condition.reason != REASON_NOT_SUBMITTED)
}

fn applied(conditions: &[Condition], kind: &str) -> Option<bool> {
    let condition = conditions.iter().find(|condition| condition.type_ == kind)?;
    match condition.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}
