//! The Works of this cluster: one watch of one namespace in the fleet.

use std::{collections::BTreeSet, pin::pin};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use keelway_fleet::{ConflictResolution, DriftPolicy, WORK_APPLIED, Work, names::WORK_FINALIZER};
use kube::{
    Api, Client, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde_json::Value;
use tokio::sync::mpsc::Sender;

use crate::{
    decision::OrderedObject,
    kind_watch::SteadyPause,
    manifest::AppliedName,
    reports::{AppliedReport, ObjectReport},
};

/// How many Works a page of a list has. The agent holds one page at a time.
const PAGE: u32 = 50;

/// A Work as the fleet sends it.
pub(crate) struct ReceivedWork {
    pub(crate) order: OrderedObject,
    pub(crate) manifest: Value,
    /// What the status of the Work contains already.
    pub(crate) applied: Option<AppliedReport>,
    pub(crate) object_digest: Option<u64>,
}

/// What the fleet sends.
pub(crate) enum FleetEvent {
    /// A Work exists.
    Received(Box<ReceivedWork>),
    /// A Work exists that cannot be carried out.
    Refused { work: String, generation: i64, message: String, applied: Option<AppliedReport> },
    /// A Work is being deleted whose manifest cannot be carried out. What an earlier manifest applied has to be deleted.
    Withdrawn { work: String, uid: String },
    /// A Work does not exist any more. Nothing is deleted because of that.
    Gone(String),
    /// These are all Works.
    Listed(BTreeSet<String>),
}

/// Sends events to the engine until the client fails for good.
pub(crate) async fn watch(client: &Client, namespace: &str, own_namespace: &str, events: &Sender<FleetEvent>) {
    let api: Api<Work> = Api::namespaced(client.clone(), namespace);
    let mut changes = pin!(watcher(api, watcher::Config::default().page_size(PAGE)).backoff(SteadyPause));
    let mut listed = BTreeSet::new();
    while let Some(change) = changes.next().await {
        let event = match change {
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(work)) => {
                listed.insert(work.name_any());
                received(work, own_namespace)
            }
            Ok(Event::Apply(work)) => received(work, own_namespace),
            Ok(Event::Delete(work)) => FleetEvent::Gone(work.name_any()),
            Ok(Event::InitDone) => FleetEvent::Listed(std::mem::take(&mut listed)),
            Err(error) => {
                tracing::warn!(%error, "cannot watch the Works of this cluster");
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

fn received(work: Work, own_namespace: &str) -> FleetEvent {
    if work.metadata.deletion_timestamp.is_some() && !has_finalizer(&work) {
        // The order to delete was carried out.
        return FleetEvent::Gone(work.name_any());
    }
    let (name, generation) = (work.name_any(), work.metadata.generation.unwrap_or_default());
    let object = AppliedName::of(&work.spec.manifest).and_then(|object| {
        object.refuse_namespace(own_namespace)?;
        Ok(object)
    });
    match object {
        Ok(object) => FleetEvent::Received(Box::new(parse(work, name, object))),
        Err(_) if work.metadata.deletion_timestamp.is_some() => {
            FleetEvent::Withdrawn { work: name, uid: work.uid().unwrap_or_default() }
        }
        Err(error) => {
            FleetEvent::Refused { work: name, generation, message: error.to_string(), applied: applied(&work) }
        }
    }
}

fn parse(work: Work, name: String, object: AppliedName) -> ReceivedWork {
    let generation = work.metadata.generation.unwrap_or_default();
    let status = work.status.as_ref();
    let applied = applied(&work);
    let object_digest = status.filter(|status| status.object_status.is_some()).map(|status| {
        ObjectReport { generation: status.object_generation, status: status.object_status.clone() }.digest()
    });
    let order = OrderedObject {
        work: name,
        uid: work.uid().unwrap_or_default(),
        generation,
        object,
        overwrites: work.spec.conflict_resolution == ConflictResolution::Overwrite,
        corrects_drift: work.spec.drift == DriftPolicy::Correct,
        is_deletion: work.metadata.deletion_timestamp.is_some(),
        was_applied: applied.as_ref().is_some_and(|applied| applied.is_applied && applied.generation == generation),
    };
    ReceivedWork { order, manifest: work.spec.manifest, applied, object_digest }
}

/// Returns what the status of a Work contains already.
fn applied(work: &Work) -> Option<AppliedReport> {
    let status = work.status.as_ref()?;
    let condition = status.conditions.iter().find(|condition| condition.type_ == WORK_APPLIED)?;
    Some(report(condition, &status.drift))
}

fn has_finalizer(work: &Work) -> bool {
    work.finalizers().iter().any(|finalizer| finalizer == WORK_FINALIZER)
}

fn report(condition: &Condition, drift: &[String]) -> AppliedReport {
    AppliedReport {
        generation: condition.observed_generation.unwrap_or_default(),
        is_applied: condition.status == "True",
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        drift: drift.to_vec(),
        since: condition.last_transition_time.0,
    }
}
