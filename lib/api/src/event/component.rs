//! Events of a cluster's components: placement, readiness, failure, removal, and renewed certificates.

use super::{DocumentEvent, find, reason::EventReason};
use crate::{
    Cluster, Component, Documents,
    component::ComponentStage,
    condition::{ConditionStatus, reason::ConditionReason},
    document::DocumentName,
    name::{ClusterRef, PodName},
    secret::Secret,
    secret_name::SecretName,
};

/// The suffix of certificates in a Secret.
const CERTIFICATE: &str = ".crt";

pub(super) fn of_change(before: &Documents, after: &Documents) -> Vec<DocumentEvent> {
    let mut told = Vec::new();
    for (pod, now) in &after.components {
        let Some(cluster) = after.clusters.get(&now.spec.cluster) else { continue };
        told.extend(of_component(cluster, pod, before.components.get(pod).map(|component| &**component), now));
    }
    for (pod, was) in before.components.iter().filter(|(pod, _)| !after.components.contains_key(*pod)) {
        // If the entire cluster is gone, only that is reported.
        let Some(cluster) = after.clusters.get(&was.spec.cluster) else { continue };
        let note = format!("{} is removed from {}", pod.component, was.spec.hypervisor);
        told.push(of_pod(cluster, pod, EventReason::ComponentRemoved, note));
    }
    for (name, cluster) in &after.clusters {
        told.extend(renewals(name, cluster, before, after));
    }
    told
}

fn of_pod(cluster: &Cluster, pod: &PodName, happening: EventReason, note: String) -> DocumentEvent {
    let related = Some(DocumentName::Component(pod.clone()));
    DocumentEvent { related, ..DocumentEvent::of(&cluster.reference(), cluster, happening, note) }
}

fn of_component(cluster: &Cluster, pod: &PodName, before: Option<&Component>, now: &Component) -> Vec<DocumentEvent> {
    let (name, machine) = (&pod.component, &now.spec.hypervisor);
    let tell = |happening, note| of_pod(cluster, pod, happening, note);
    let Some(before) = before else {
        let why = &now.spec.placement;
        return vec![tell(EventReason::ComponentPlaced, format!("{name} is placed on {machine}: {why}"))];
    };
    let staged = match (before.stage(), now.stage()) {
        (ComponentStage::Joining, ComponentStage::Serving) => {
            Some(tell(EventReason::ComponentJoined, format!("{name} on {machine} is ready for the first time")))
        }
        (ComponentStage::Joining | ComponentStage::Serving, ComponentStage::Leaving | ComponentStage::Stopping) => {
            Some(tell(EventReason::ComponentLeaving, format!("{name} on {machine} is no longer needed")))
        }
        (ComponentStage::Leaving | ComponentStage::Stopping, ComponentStage::Joining | ComponentStage::Serving) => {
            Some(tell(EventReason::ComponentKept, format!("{name} on {machine} is needed again")))
        }
        (ComponentStage::Joining, ComponentStage::Joining)
        | (ComponentStage::Serving, ComponentStage::Joining | ComponentStage::Serving)
        | (ComponentStage::Leaving | ComponentStage::Stopping, ComponentStage::Leaving | ComponentStage::Stopping) => {
            None
        }
    };
    staged.into_iter().chain(health(cluster, pod, before, now)).collect()
}

/// Reports health only of components that were ready before. A starting component is not ready yet, and one that leaves is not needed.
fn health(cluster: &Cluster, pod: &PodName, before: &Component, now: &Component) -> Option<DocumentEvent> {
    if before.stage() != ComponentStage::Serving || now.stage() != ComponentStage::Serving {
        return None;
    }
    let ready = |of: &'_ Component| find(&of.status.as_ref()?.conditions, "Ready").cloned();
    let (was, is) = (ready(before)?, ready(now)?);
    let is_true = |status: &str| status == ConditionStatus::True.as_str();
    if is_true(&was.status) == is_true(&is.status) {
        return None;
    }
    let reason = ConditionReason::of_name(&is.reason)?;
    let (name, machine) = (&pod.component, &now.spec.hypervisor);
    let note = if is_true(&is.status) {
        format!("{name} on {machine} is ready again")
    } else {
        format!("{name} on {machine} waits for {}", is.message)
    };
    Some(DocumentEvent {
        regarding: DocumentName::Cluster(cluster.reference()),
        uid: cluster.metadata.uid.clone(),
        related: Some(DocumentName::Component(pod.clone())),
        warning: reason.explained().warning,
        reason: reason.as_str(),
        note,
    })
}

/// Returns an Event for certificates that existed before and have changed.
fn renewals(name: &ClusterRef, cluster: &Cluster, before: &Documents, after: &Documents) -> Vec<DocumentEvent> {
    let Some(id) = cluster.id() else { return Vec::new() };
    let mut told = Vec::new();
    for (secret, now) in after.secrets_of(id) {
        let Some(was) = before.secrets.get(&SecretName::of(id, secret)) else { continue };
        let renewed = renewed(was, now);
        if renewed.is_empty() {
            continue;
        }
        let event = DocumentEvent::of(
            name,
            cluster,
            EventReason::CertificatesRenewed,
            format!("{secret} has new certificates: {}", renewed.join(", ")),
        );
        let component = secret.parse().ok().map(|component| PodName { cluster: id.clone(), component });
        let related = component.filter(|pod| after.components.contains_key(pod)).map(DocumentName::Component);
        told.push(DocumentEvent { related, ..event });
    }
    told
}

fn renewed<'a>(was: &Secret, now: &'a Secret) -> Vec<&'a str> {
    let known = |key: &str| was.data.as_ref()?.get(key);
    let certificates = now.data.iter().flatten().filter(|(key, _)| key.ends_with(CERTIFICATE));
    let changed = certificates.filter(|(key, value)| known(key).is_some_and(|known| known != *value));
    changed.filter_map(|(key, _)| key.strip_suffix(CERTIFICATE)).collect()
}
