//! What is told of a cluster's components: where they come, that they serve, fail and leave, and what they got anew.

use super::{Event, find, reason::Happening};
use crate::{
    Cluster, Component, Documents,
    component::Stage,
    condition::{Status, reason::Reason},
    document::DocumentName,
    documents::SecretName,
    name::{ClusterRef, PodName},
    secret::Secret,
};

/// What certificates are called within a Secret.
const CERTIFICATE: &str = ".crt";

pub(super) fn of_change(before: &Documents, after: &Documents) -> Vec<Event> {
    let mut told = Vec::new();
    for (pod, now) in &after.components {
        let Some(cluster) = after.clusters.get(&now.spec.cluster) else { continue };
        told.extend(of_component(cluster, pod, before.components.get(pod).map(|component| &**component), now));
    }
    for (pod, was) in before.components.iter().filter(|(pod, _)| !after.components.contains_key(*pod)) {
        // Of a cluster that is gone as a whole that is told alone.
        let Some(cluster) = after.clusters.get(&was.spec.cluster) else { continue };
        let note = format!("{} is taken away from {}", pod.component, was.spec.hypervisor);
        told.push(of_pod(cluster, pod, Happening::ComponentRemoved, note));
    }
    for (name, cluster) in &after.clusters {
        told.extend(renewals(name, cluster, before, after));
    }
    told
}

fn of_pod(cluster: &Cluster, pod: &PodName, happening: Happening, note: String) -> Event {
    let related = Some(DocumentName::Component(pod.clone()));
    Event { related, ..Event::of(&cluster.reference(), cluster, happening, note) }
}

fn of_component(cluster: &Cluster, pod: &PodName, before: Option<&Component>, now: &Component) -> Vec<Event> {
    let (name, machine) = (&pod.component, &now.spec.hypervisor);
    let tell = |happening, note| of_pod(cluster, pod, happening, note);
    let Some(before) = before else {
        let why = &now.spec.placement;
        return vec![tell(Happening::ComponentPlaced, format!("{name} goes to {machine}: {why}"))];
    };
    let staged = match (before.stage(), now.stage()) {
        (Stage::Joining, Stage::Serving) => {
            Some(tell(Happening::ComponentJoined, format!("{name} on {machine} is ready for the first time")))
        }
        (Stage::Joining | Stage::Serving, Stage::Leaving | Stage::Stopping) => {
            Some(tell(Happening::ComponentLeaving, format!("{name} on {machine} is no longer wanted")))
        }
        (Stage::Leaving | Stage::Stopping, Stage::Joining | Stage::Serving) => {
            Some(tell(Happening::ComponentKept, format!("{name} on {machine} is wanted again")))
        }
        (Stage::Joining, Stage::Joining)
        | (Stage::Serving, Stage::Joining | Stage::Serving)
        | (Stage::Leaving | Stage::Stopping, Stage::Leaving | Stage::Stopping) => None,
    };
    staged.into_iter().chain(health(cluster, pod, before, now)).collect()
}

/// Of a component that was ready before: one that comes up is not, and one that is to go is missed by nobody.
fn health(cluster: &Cluster, pod: &PodName, before: &Component, now: &Component) -> Option<Event> {
    if before.stage() != Stage::Serving || now.stage() != Stage::Serving {
        return None;
    }
    let ready = |of: &'_ Component| find(&of.status.as_ref()?.conditions, "Ready").cloned();
    let (was, is) = (ready(before)?, ready(now)?);
    let is_true = |status: &str| status == Status::True.as_str();
    if is_true(&was.status) == is_true(&is.status) {
        return None;
    }
    let reason = Reason::of_name(&is.reason)?;
    let (name, machine) = (&pod.component, &now.spec.hypervisor);
    let note = if is_true(&is.status) {
        format!("{name} on {machine} is ready again")
    } else {
        format!("{name} on {machine} waits for {}", is.message)
    };
    Some(Event {
        regarding: DocumentName::Cluster(cluster.reference()),
        uid: cluster.metadata.uid.clone(),
        related: Some(DocumentName::Component(pod.clone())),
        warning: reason.is_trouble(),
        reason: reason.as_str(),
        note,
    })
}

/// Certificates that were there before, and are others now.
fn renewals(name: &ClusterRef, cluster: &Cluster, before: &Documents, after: &Documents) -> Vec<Event> {
    let Some(id) = cluster.id() else { return Vec::new() };
    let mut told = Vec::new();
    for (secret, now) in after.secrets_of(id) {
        let Some(was) = before.secrets.get(&SecretName::of(id, secret)) else { continue };
        let renewed = renewed(was, now);
        if renewed.is_empty() {
            continue;
        }
        let event = Event::of(
            name,
            cluster,
            Happening::CertificatesRenewed,
            format!("{secret} has new certificates: {}", renewed.join(", ")),
        );
        let component = secret.parse().ok().map(|component| PodName { cluster: id.clone(), component });
        let related = component.filter(|pod| after.components.contains_key(pod)).map(DocumentName::Component);
        told.push(Event { related, ..event });
    }
    told
}

fn renewed<'a>(was: &Secret, now: &'a Secret) -> Vec<&'a str> {
    let known = |key: &str| was.data.as_ref()?.get(key);
    let certificates = now.data.iter().flatten().filter(|(key, _)| key.ends_with(CERTIFICATE));
    let changed = certificates.filter(|(key, value)| known(key).is_some_and(|known| known != *value));
    changed.filter_map(|(key, _)| key.strip_suffix(CERTIFICATE)).collect()
}
