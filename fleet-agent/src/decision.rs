//! What the agent does about one Work: from the Work, what was applied and what the cluster has, to one action. No IO.

use serde::{Deserialize, Serialize};

use crate::{
    manifest::AppliedName,
    ownership::{FieldConflict, FieldPaths, REPLICAS},
};

/// What a Work orders, without the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, which the Work states")]
pub struct OrderedObject {
    /// The name of the Work.
    pub work: String,
    /// The uid of the Work.
    pub uid: String,
    /// The generation of the Work.
    pub generation: i64,
    /// The object.
    pub object: AppliedName,
    /// Whether values of other managers are replaced.
    pub overwrites: bool,
    /// Whether drift is corrected, or only reported.
    pub corrects_drift: bool,
    /// Whether the object has to be deleted.
    pub is_deletion: bool,
    /// Whether the Work's status reports that this generation was applied.
    pub was_applied: bool,
}

/// What the agent applied last, and what the API server recorded for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedRecord {
    /// The uid of the Work.
    pub work_uid: String,
    /// The generation of the Work.
    pub generation: i64,
    /// The uid of the object.
    pub object_uid: String,
    /// The fields that the agent owned after it applied the object.
    pub owned: FieldPaths,
    /// Whether `spec.replicas` was left to an autoscaler.
    #[serde(default)]
    pub is_autoscaled: bool,
    /// Whether the agent created the object. It matters only for objects that contain others.
    #[serde(default)]
    pub is_created: bool,
}

/// What the cluster has under the name of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveObject {
    /// The agent has not read it.
    Unread,
    /// There is no such object.
    Absent,
    /// There is one.
    Present(LiveFacts),
}

/// The facts about an object that decide what happens to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveFacts {
    /// The uid.
    pub uid: String,
    /// The fields that the agent applied and still owns.
    pub owned: FieldPaths,
    /// Whether it has the label of the agent.
    pub is_labelled: bool,
    /// Whether it has the annotation of a container that the agent created.
    pub is_created: bool,
    /// Whether it is being deleted.
    pub is_deleting: bool,
}

/// What the agent does about a Work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkAction {
    /// Apply the manifest.
    Apply {
        /// Whether the agent creates the object, and may delete it later. It is recorded for containers only.
        is_created: bool,
        /// The fields that were changed in the cluster.
        lost: FieldPaths,
    },
    /// Report fields that were changed in the cluster, and leave them.
    ReportDrift(FieldPaths),
    /// Report that the object was deleted in the cluster, and leave it so.
    ReportMissing,
    /// Delete the object with this uid.
    Delete(String),
    /// Wait until the object is deleted.
    AwaitDeletion,
    /// The order to delete is carried out, or concerns no object of the agent: release the Work.
    Release(ReleaseReason),
    /// Everything is as it was applied.
    Keep,
}

/// Why there is nothing to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReason {
    /// The object does not exist.
    Absent,
    /// Another client created the object.
    Foreign,
    /// The object contains objects of others, and existed before the agent applied it.
    Adopted,
    /// Another orchestrator submitted the object, and removes it.
    Delegated,
}

/// What the agent does after the API server refused to apply a manifest because of conflicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConflictStep {
    /// Apply the manifest again.
    Again {
        /// Whether values of other managers are replaced.
        force: bool,
        /// Whether `spec.replicas` is left out.
        is_autoscaled: bool,
    },
    /// Report the conflicts, and change nothing.
    Report(Vec<FieldConflict>),
}

/// Whether the decision depends on what the cluster has. A first apply needs no read.
#[must_use]
pub fn needs_read(order: &OrderedObject, record: Option<&AppliedRecord>) -> bool {
    order.is_deletion || order.object.is_container() || current(order, record).is_some()
}

/// Decides what to do about a Work.
#[must_use]
pub fn decide(order: &OrderedObject, record: Option<&AppliedRecord>, live: &LiveObject) -> WorkAction {
    if order.is_deletion {
        return decide_deletion(order, record, live);
    }
    match (current(order, record), live) {
        (Some(record), LiveObject::Present(live)) => decide_drift(order, record, live),
        (Some(_), LiveObject::Absent) if !order.corrects_drift => WorkAction::ReportMissing,
        (Some(_), LiveObject::Unread) => WorkAction::Keep,
        (None, LiveObject::Present(live)) => WorkAction::Apply { is_created: live.is_created, lost: FieldPaths::new() },
        (_, LiveObject::Absent | LiveObject::Unread) => WorkAction::Apply { is_created: true, lost: FieldPaths::new() },
    }
}

/// Returns the record if this generation of the Work was applied.
pub(crate) fn current<'a>(order: &OrderedObject, record: Option<&'a AppliedRecord>) -> Option<&'a AppliedRecord> {
    record.filter(|record| record.work_uid == order.uid && record.generation == order.generation)
}

fn decide_drift(order: &OrderedObject, record: &AppliedRecord, live: &LiveFacts) -> WorkAction {
    let lost: FieldPaths = record.owned.difference(&live.owned).cloned().collect();
    if live.is_deleting || lost.is_empty() {
        // An object that is being deleted is created again once it is gone.
        return WorkAction::Keep;
    }
    if order.corrects_drift {
        WorkAction::Apply { is_created: record.is_created, lost }
    } else {
        WorkAction::ReportDrift(lost)
    }
}

/// Deletes an object only if all of this holds:
/// 1. The Work has a deletion timestamp. A Work that is not listed deletes nothing.
/// 2. The object has the label of the agent, and the API server recorded fields that the agent applied.
/// 3. If the agent recorded the uid of what it applied, the object has this uid. An object that another client created under the same name stays.
/// 4. If its deletion would delete objects of others, the agent created the object.
fn decide_deletion(order: &OrderedObject, record: Option<&AppliedRecord>, live: &LiveObject) -> WorkAction {
    let live = match live {
        LiveObject::Unread => return WorkAction::AwaitDeletion,
        LiveObject::Absent => return WorkAction::Release(ReleaseReason::Absent),
        LiveObject::Present(live) => live,
    };
    let is_recorded = record.is_none_or(|record| record.object_uid == live.uid);
    if !live.is_labelled || live.owned.is_empty() || !is_recorded {
        return WorkAction::Release(ReleaseReason::Foreign);
    }
    if order.object.is_container() && !live.is_created {
        return WorkAction::Release(ReleaseReason::Adopted);
    }
    if live.is_deleting { WorkAction::AwaitDeletion } else { WorkAction::Delete(live.uid.clone()) }
}

/// Decides what to do about conflicts. `is_autoscaled`: an autoscaler in the cluster decides on `spec.replicas`.
#[must_use]
pub fn resolve(
    order: &OrderedObject,
    record: Option<&AppliedRecord>,
    conflicts: Vec<FieldConflict>,
    is_autoscaled: bool,
) -> ConflictStep {
    let leaves_replicas = is_autoscaled && conflicts.iter().any(|conflict| conflict.field == REPLICAS);
    let rest: Vec<FieldConflict> =
        conflicts.into_iter().filter(|conflict| !(leaves_replicas && conflict.field == REPLICAS)).collect();
    let is_drift = order.corrects_drift && rest.iter().all(|conflict| was_owned(order, record, &conflict.field));
    if rest.is_empty() || order.overwrites || is_drift {
        return ConflictStep::Again { force: !rest.is_empty(), is_autoscaled: leaves_replicas };
    }
    ConflictStep::Report(rest)
}

/// Whether the agent owned the field when it applied the object last, so that another manager changed it since. Without a record, the status of
/// the Work counts: this manifest was applied without conflicts.
fn was_owned(order: &OrderedObject, record: Option<&AppliedRecord>, field: &str) -> bool {
    match record.filter(|record| record.work_uid == order.uid) {
        Some(record) => record.owned.contains(field) || (record.is_autoscaled && field == REPLICAS),
        None => order.was_applied,
    }
}
