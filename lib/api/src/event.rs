//! Kubernetes Events for changes. They are derived from the documents before and after a change, so that each is reported once, whichever program
//! observes it and however often.

mod component;
pub mod reason;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use reason::EventReason;

use crate::{
    Cluster, Documents, Hypervisor,
    condition::reason::ConditionReason,
    document::DocumentName,
    name::{ClusterRef, HypervisorName},
    store_rebuild::RebuiltStore,
};

/// An Event about a change of documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentEvent {
    /// The Cluster or Hypervisor that the Event is about.
    pub regarding: DocumentName,
    /// `metadata.uid` of that document.
    pub uid: Option<String>,
    /// The Component that the Event concerns, if it concerns one.
    pub related: Option<DocumentName>,
    /// Whether a person should react.
    pub warning: bool,
    /// A CamelCase reason: that of a condition, or an [`EventReason`].
    pub reason: &'static str,
    /// A sentence for people. It contains no key and no text of a document.
    pub note: String,
}

/// Returns the Events of a change, in the order of documents: machines, clusters, components.
#[must_use]
pub fn of_change(before: &Documents, after: &Documents) -> Vec<DocumentEvent> {
    let mut told = Vec::new();
    for (name, document) in &after.hypervisors {
        told.extend(of_machine(name, before.hypervisors.get(name).map(|machine| &**machine), document));
    }
    for (name, document) in &after.clusters {
        told.extend(of_cluster(name, before.clusters.get(name).map(|cluster| &**cluster), document));
    }
    for (name, document) in before.clusters.iter().filter(|(name, _)| !after.clusters.contains_key(name)) {
        told.push(DocumentEvent::of(name, document, EventReason::ClusterDeleted, "no machine holds any part of it"));
    }
    told.extend(component::of_change(before, after));
    told
}

impl DocumentEvent {
    fn of(name: &ClusterRef, cluster: &Cluster, happening: EventReason, note: impl Into<String>) -> Self {
        Self {
            regarding: DocumentName::Cluster(name.clone()),
            uid: cluster.metadata.uid.clone(),
            related: None,
            warning: false,
            reason: happening.as_str(),
            note: note.into(),
        }
    }

    fn condition(regarding: DocumentName, uid: Option<&String>, condition: &Condition) -> Option<Self> {
        let reason = ConditionReason::of_name(&condition.reason)?;
        let (uid, note) = (uid.cloned(), condition.message.clone());
        Some(Self { regarding, uid, related: None, warning: reason.explained().warning, reason: reason.as_str(), note })
    }
}

/// Returns the conditions whose status or reason has changed, and whether each existed before.
fn turned<'a>(before: &'a [Condition], after: &'a [Condition]) -> impl Iterator<Item = (bool, &'a Condition)> {
    after.iter().filter_map(|now| {
        let known = find(before, &now.type_);
        let is_same = known.is_some_and(|known| (&known.status, &known.reason) == (&now.status, &now.reason));
        (!is_same).then_some((known.is_some(), now))
    })
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn of_machine(name: &HypervisorName, before: Option<&Hypervisor>, after: &Hypervisor) -> Vec<DocumentEvent> {
    let regarding = || DocumentName::Hypervisor(name.clone());
    let (was, is) = (before.map(conditions_of_machine).unwrap_or_default(), conditions_of_machine(after));
    let uid = after.metadata.uid.as_ref();
    // A machine that no pass has observed needs no Event.
    let told = turned(was, is).filter(|(_, condition)| condition.reason != ConditionReason::NotObserved.as_str());
    let mut told: Vec<DocumentEvent> =
        told.filter_map(|(_, condition)| DocumentEvent::condition(regarding(), uid, condition)).collect();
    let has_pressure = |conditions| find(conditions, "DiskPressure").is_some();
    if has_pressure(was) && !has_pressure(is) {
        let note = "its disk has free space again".to_owned();
        let reason = EventReason::DiskHasRoom.as_str();
        told.push(DocumentEvent {
            regarding: regarding(),
            uid: uid.cloned(),
            related: None,
            warning: false,
            reason,
            note,
        });
    }
    told
}

fn conditions_of_machine(document: &Hypervisor) -> &[Condition] {
    document.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

fn conditions_of_cluster(document: &Cluster) -> &[Condition] {
    document.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

fn of_rebuild(document: &Cluster) -> Option<&RebuiltStore> {
    document.status.as_ref()?.etcd.as_ref()?.rebuilt.as_ref()
}

fn of_cluster(name: &ClusterRef, before: Option<&Cluster>, after: &Cluster) -> Vec<DocumentEvent> {
    let (was, is) = (before.map(conditions_of_cluster).unwrap_or_default(), conditions_of_cluster(after));
    let mut told = Vec::new();
    let members = |document: &Cluster| Some(document.status.as_ref()?.etcd.as_ref()?.initial_cluster.len());
    if let (None, Some(members)) = (before.and_then(members), members(after)) {
        let note = format!("the first etcd members are recorded: {members}");
        told.push(DocumentEvent::of(name, after, EventReason::StoreBorn, note));
    }
    if let Some(rebuilt) = of_rebuild(after)
        && before.and_then(of_rebuild) != Some(rebuilt)
    {
        told.push(DocumentEvent::of(name, after, EventReason::StoreRebuilt, rebuilt.to_string()));
    }
    if after.is_initialized() && before.is_some_and(|before| !before.is_initialized()) {
        let note = "an API server is ready for the first time";
        told.push(DocumentEvent::of(name, after, EventReason::ControlPlaneInitialized, note));
    }
    if find(was, "Paused").is_some() && find(is, "Paused").is_none() {
        told.push(DocumentEvent::of(name, after, EventReason::Resumed, "reconciliation has resumed"));
    }
    // A starting cluster is not ready at first. Its progress already reports that.
    let of_birth = |condition: &Condition| {
        matches!(condition.type_.as_str(), "Progressing" | "Paused" | "WithinClass" | "FieldsKnown")
    };
    let is_grown = after.is_initialized() || after.deleted();
    let news = turned(was, is).filter(|(known, condition)| of_birth(condition) || (*known && is_grown));
    let regarding = || DocumentName::Cluster(name.clone());
    let uid = after.metadata.uid.as_ref();
    told.extend(news.filter_map(|(_, condition)| DocumentEvent::condition(regarding(), uid, condition)));
    told
}
