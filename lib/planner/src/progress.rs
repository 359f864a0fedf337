//! The condition `Progressing`: whether a cluster is moving to its desired state, has reached it, or is blocked.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Time,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    jiff::Timestamp,
    name::ClusterRef,
};

use crate::{
    PassObservation, Plan, WaitBlocker, WaitKind, Waiting, keelway_upgrade::note_upgraded, minted::note_minted,
    text::listed, verdict::verdict,
};

/// Records what was minted for each cluster and what its plan waits for. Call it after [`crate::configure`], which decides the turns of
/// replacements. The condition contains only names, because the text of a wait may differ in each pass.
pub fn plan_progress(plan: &mut Plan, seen: &PassObservation, now: Timestamp) {
    if seen.stale() {
        return;
    }
    note_minted(&mut plan.documents);
    let Plan { documents, waiting, .. } = plan;
    let mut of: BTreeMap<&ClusterRef, Vec<(&Waiting, WaitKind)>> = BTreeMap::new();
    for waiting in waiting.iter() {
        if let Some((cluster, cause)) = &waiting.delays {
            of.entry(cluster).or_default().push((waiting, *cause));
        }
    }
    for (name, document) in documents.clusters.iter_mut() {
        let waiting = of.get(name).map(Vec::as_slice).unwrap_or_default();
        let says = progress(document, waiting);
        // A finding before an upgrade of Kubernetes is no reason for other clusters to wait for theirs of Keelway.
        if waiting.iter().all(|(waiting, _)| matches!(waiting.blocker, WaitBlocker::Preflight(_))) {
            note_upgraded(document);
        }
        let generation = document.metadata.generation;
        let status = document.status.get_or_insert_default();
        condition::set(&mut status.conditions, "Progressing", says, generation, &Time(now));
    }
}

fn progress(document: &Cluster, waiting: &[(&Waiting, WaitKind)]) -> ConditionValue {
    if document.spec.paused && !document.deleted() {
        return verdict(ConditionStatus::Unknown, ConditionReason::Paused, "it is paused");
    }
    if let Some((first, _)) = waiting.iter().find(|(_, cause)| *cause == WaitKind::Blocked) {
        return verdict(ConditionStatus::False, ConditionReason::Blocked, first.to_string());
    }
    if let Some((machines, _)) = waiting.first().filter(|_| document.deleted()) {
        return verdict(ConditionStatus::True, ConditionReason::Deleting, format!("waits for {}", machines.blocker));
    }
    let reason = if waiting.is_empty() {
        return verdict(ConditionStatus::False, ConditionReason::Settled, "it matches its document");
    } else if document.is_initialized() {
        ConditionReason::Changing
    } else {
        ConditionReason::Starting
    };
    verdict(ConditionStatus::True, reason, format!("waits for {}", named(waiting)))
}

/// The components that are waited for, or `its API` if the cluster itself is.
fn named(waiting: &[(&Waiting, WaitKind)]) -> String {
    let name = |waiting: &Waiting| waiting.subject.name_in_cluster().unwrap_or_else(|| "its API".to_string());
    let names: BTreeSet<String> = waiting.iter().map(|(waiting, _)| name(waiting)).collect();
    listed(names.iter())
}
