//! Works whose objects another orchestrator submits: the agent reads them, and writes nothing in its cluster.

use keelway_fleet::names::{REASON_NOT_SUBMITTED, REASON_TRACKED, SCHEDULE_LABEL, SCHEDULE_TRUE};
use kube::{ResourceExt, api::DynamicObject};

use crate::{
    decision::{OrderedObject, ReleaseReason},
    reconcile::WorkOutcome,
    reports::AppliedReport,
    workload_api::WorkloadApi,
};

/// What the agent leaves to others, by its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentDuties {
    /// Whether the agent applies objects. If not, another orchestrator submits them, and the agent tracks them.
    pub orchestrates: bool,
    /// Whether the fleet may look for another cluster by itself for what runs in this one.
    pub reschedules: bool,
}

/// Reads the object of a Work. An order to delete is carried out by not tracking the object any more.
pub(crate) async fn track(api: &WorkloadApi, order: &OrderedObject) -> WorkOutcome {
    if order.is_deletion {
        return WorkOutcome::Released(ReleaseReason::Delegated);
    }
    match api.find(&order.object).await {
        Ok(Some(live)) if is_submitted(&live) => WorkOutcome::Tracked(Box::new(live)),
        Ok(found) => WorkOutcome::NotSubmitted { is_there: found.is_some() },
        Err(error) => WorkOutcome::Failed(error),
    }
}

/// Whether another orchestrator asks for an object to be tracked.
fn is_submitted(live: &DynamicObject) -> bool {
    live.labels().get(SCHEDULE_LABEL).is_some_and(|value| value == SCHEDULE_TRUE)
}

/// Returns the message of an object that is not tracked.
pub(crate) fn not_submitted(is_there: bool) -> String {
    if is_there {
        format!(
            "the object in the cluster lacks the label {SCHEDULE_LABEL}: \"{SCHEDULE_TRUE}\"; the orchestrator that submitted it has to set it"
        )
    } else {
        format!(
            "the cluster does not have the object: another orchestrator has to submit it there, with the label {SCHEDULE_LABEL}: \"{SCHEDULE_TRUE}\""
        )
    }
}

/// Whether the agent tracks an object, by its last report.
pub(crate) fn is_tracked(report: Option<&AppliedReport>) -> bool {
    report.is_some_and(|report| report.reason == REASON_TRACKED)
}

/// Whether an object waits for another orchestrator, by the last report.
pub(crate) fn waits(report: &AppliedReport) -> bool {
    report.reason == REASON_NOT_SUBMITTED
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_label_with_its_value_asks_for_tracking() {
        let is = |labels: serde_json::Value| {
            let object =
                json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "a", "labels": labels } });
            serde_json::from_value(object).is_ok_and(|object| is_submitted(&object))
        };
        assert!(is(json!({ "fleet.keelway.dev/schedule": "true" })));
        for labels in [json!({}), json!({ "fleet.keelway.dev/schedule": "false" }), json!({ "schedule": "true" })] {
            assert!(!is(labels.clone()), "{labels}");
        }
    }
}
