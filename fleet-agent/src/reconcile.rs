//! One Work, once: observe, decide, apply.

use kube::api::DynamicObject;
use serde_json::Value;

use crate::{
    decision::{
        AppliedRecord, ConflictStep, LiveObject, OrderedObject, ReleaseReason, WorkAction, current, decide, needs_read,
        resolve,
    },
    manifest::{AppliedForm, ApplyRank, applied_form},
    ownership::{FieldConflict, FieldPaths, REPLICAS},
    workload_api::{ApplyAttempt, WorkloadApi, WorkloadError, facts},
};

/// How often a manifest is applied again at once: after its namespace is created, and after its conflicts are resolved.
const ATTEMPTS: usize = 4;

/// What became of a Work.
pub(crate) enum WorkOutcome {
    /// The manifest is applied.
    Applied(AppliedRecord),
    /// The manifest is applied again, because the cluster changed or deleted the object.
    Corrected(AppliedRecord),
    /// Other managers own fields, and nothing was changed.
    Conflicts(Vec<FieldConflict>),
    /// Fields were changed in the cluster, and are left so.
    Drifted(FieldPaths),
    /// The object was deleted in the cluster, and is left so.
    Missing,
    /// The cluster has what was applied.
    Unchanged,
    /// Another orchestrator submitted the object, which is as it is here.
    Tracked(Box<DynamicObject>),
    /// Another orchestrator has not submitted the object.
    NotSubmitted {
        /// Whether an object has its name, and lacks the label.
        is_there: bool,
    },
    /// The object is being deleted.
    Deleting,
    /// The Work may end.
    Released(ReleaseReason),
    /// A step failed, and is retried.
    Failed(WorkloadError),
}

impl WorkOutcome {
    /// Returns the outcome as one word.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Applied(_) | Self::Corrected(_) => "Applied",
            Self::Conflicts(_) => "Conflict",
            Self::Drifted(_) => "Drifted",
            Self::Missing => "Missing",
            Self::Unchanged => "Unchanged",
            Self::Tracked(_) => "Tracked",
            Self::NotSubmitted { .. } => "NotSubmitted",
            Self::Deleting => "Deleting",
            Self::Released(_) => "Released",
            Self::Failed(_) => "Failed",
        }
    }
}

/// Carries out one Work.
pub(crate) async fn reconcile(
    api: &WorkloadApi,
    order: &OrderedObject,
    manifest: &Value,
    record: Option<&AppliedRecord>,
) -> WorkOutcome {
    attempt(api, order, manifest, record).await.unwrap_or_else(WorkOutcome::Failed)
}

async fn attempt(
    api: &WorkloadApi,
    order: &OrderedObject,
    manifest: &Value,
    record: Option<&AppliedRecord>,
) -> Result<WorkOutcome, WorkloadError> {
    let live = if needs_read(order, record) { api.read(&order.object).await? } else { LiveObject::Unread };
    Ok(match decide(order, record, &live) {
        WorkAction::Apply { is_created, lost } => {
            if !lost.is_empty() {
                tracing::info!(work = order.work, object = %order.object, fields = ?lost, "corrects drift");
            }
            apply(api, order, manifest, record, is_created && order.object.is_container()).await?
        }
        WorkAction::ReportDrift(lost) => WorkOutcome::Drifted(lost),
        WorkAction::ReportMissing => WorkOutcome::Missing,
        WorkAction::Keep => WorkOutcome::Unchanged,
        WorkAction::AwaitDeletion => WorkOutcome::Deleting,
        WorkAction::Release(reason) => WorkOutcome::Released(reason),
        WorkAction::Delete(uid) => {
            tracing::info!(work = order.work, object = %order.object, "deletes");
            api.delete(&order.object, &uid).await?;
            match api.read(&order.object).await? {
                LiveObject::Absent => WorkOutcome::Released(ReleaseReason::Absent),
                LiveObject::Present(_) | LiveObject::Unread => WorkOutcome::Deleting,
            }
        }
    })
}

async fn apply(
    api: &WorkloadApi,
    order: &OrderedObject,
    manifest: &Value,
    record: Option<&AppliedRecord>,
    is_created: bool,
) -> Result<WorkOutcome, WorkloadError> {
    let (mut force, mut is_autoscaled, mut conflicts) = (false, false, Vec::new());
    for _ in 0..ATTEMPTS {
        let applied = applied_form(manifest, AppliedForm { is_created, is_autoscaled });
        match api.apply(&order.object, &applied, force).await? {
            ApplyAttempt::NoNamespace(namespace) => api.create_namespace(&namespace, &order.object).await?,
            ApplyAttempt::Conflicts(found) => {
                let is_scaled = found.iter().any(|conflict| conflict.field == REPLICAS);
                let is_scaled = is_scaled && api.is_autoscaled(&order.object).await?;
                conflicts.clone_from(&found);
                match resolve(order, record, found, is_scaled) {
                    ConflictStep::Again { force: next, is_autoscaled: left } => (force, is_autoscaled) = (next, left),
                    ConflictStep::Report(conflicts) => return Ok(WorkOutcome::Conflicts(conflicts)),
                }
            }
            ApplyAttempt::Applied(live) => {
                if order.object.rank() == ApplyRank::Definition {
                    api.established(&order.object.name).await?;
                }
                let live = facts(&live);
                let applied = AppliedRecord {
                    work_uid: order.uid.clone(),
                    generation: order.generation,
                    object_uid: live.uid,
                    owned: live.owned,
                    is_autoscaled,
                    is_created,
                };
                let is_again = current(order, record).is_some();
                return Ok(if is_again { WorkOutcome::Corrected(applied) } else { WorkOutcome::Applied(applied) });
            }
        }
    }
    Ok(WorkOutcome::Conflicts(conflicts))
}
