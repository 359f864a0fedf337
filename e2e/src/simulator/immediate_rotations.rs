//! Immediate rotations: what people request after a key was stolen, which components the documents name as left behind, and what trusts the previous
//! key afterwards (docs/rotation.md).

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ByteString, Cluster, Documents, Time,
    documents::SecretName,
    jiff::{SignedDuration, Timestamp},
    name::{ClusterId, ClusterRef, PodName},
    rotation::{KeyRotation, RotatedKey, RotationPhase, RotationRequest},
};
use keelway_planner::trust::{PRESENTED_CREDENTIALS, secret_of};
use tokio::time::Instant;

use super::{
    bug::Bug,
    person::PersonAction,
    rollout_bugs::RolloutBug,
    rollout_rules::{has_authority, running_components},
    state::SimulationState,
};

/// What is known of the rotations of all clusters.
#[derive(Default)]
pub(super) struct RotationHistory {
    /// The keys whose last rotation a person requested as immediate.
    immediate: BTreeSet<(ClusterId, RotatedKey)>,
    /// The last rotation of each key in the documents.
    last: BTreeMap<(ClusterId, RotatedKey), KeyRotation>,
    /// When the documents named a component as left behind.
    left_behind: BTreeMap<(PodName, RotatedKey), Instant>,
    /// Every authority, and every public key, that was active.
    generations: BTreeMap<(ClusterId, RotatedKey), BTreeSet<Vec<u8>>>,
}

impl RotationHistory {
    /// A person requests a rotation that is not immediate.
    pub(super) fn begin_careful(&mut self, id: &ClusterId, key: RotatedKey) {
        self.immediate.remove(&(id.clone(), key));
    }
}

impl SimulationState {
    /// Requests an immediate rotation, as `keelway cluster rotate --now` does. A rotation that runs or is requested becomes immediate.
    pub(super) fn rotate_now(&mut self, name: &ClusterRef) {
        let now = Time(Timestamp::from_second(self.now().as_second()).unwrap());
        let Some(key) = self.rollouts.random.pick(RotatedKey::ALL) else { return };
        let Some(cluster) = self.saved.clusters.get_mut(name).filter(|cluster| cluster.is_initialized()) else {
            return;
        };
        let running = cluster.running_rotation(key).map(|rotation| rotation.requested_at.clone());
        let known = running.or_else(|| cluster.pending_rotation(key).map(|request| request.requested_at.clone()));
        let requested_at = known.unwrap_or(now);
        *cluster.spec.rotations.request_mut(key) =
            Some(RotationRequest { requested_at, complete: true, immediate: true });
        let id = cluster.id().cloned();
        self.rollouts.history.immediate.extend(id.map(|id| (id, key)));
        self.record_action(PersonAction::RotatesNow(key));
        self.trace_line(format!("a person rotates the {key} of {name} now"));
        self.note_completed(name, key, true);
    }

    /// Records the active generations, and whom each rotation has left behind.
    pub(super) fn note_rotations(&mut self) {
        let latest = self.pass.loaded_at.max(self.now());
        let living = self.saved.clusters.values().filter(|cluster| !cluster.deleted() && cluster.is_initialized());
        for cluster in living {
            let Some(id) = cluster.id() else { continue };
            for key in RotatedKey::ALL {
                let history = &mut self.rollouts.history;
                let of_key = (id.clone(), key);
                if let Some(active) = generation(&self.saved, id, key, "active") {
                    let known = history.generations.entry(of_key.clone()).or_default();
                    if !known.contains(active) {
                        known.insert(active.to_vec());
                    }
                }
                let Some(rotation) = cluster.rotation(key).filter(|now| history.last.get(&of_key) != Some(now)) else {
                    continue;
                };
                let before = history.last.insert(of_key.clone(), rotation.clone());
                let is_immediate = history.immediate.contains(&of_key);
                let named = self.saved.components_of(id).filter(|(pod, component)| {
                    rotation.left_behind.contains(&format!("{} on {}", pod.component, component.spec.hypervisor))
                });
                let named = named.filter(|_| is_immediate).map(|(pod, _)| ((pod.clone(), key), Instant::now()));
                history.left_behind.extend(named);
                if key != RotatedKey::KubernetesAuthority {
                    continue;
                }
                let is_over = is_immediate || before.is_some_and(|before| deadline(cluster, &before) <= Some(latest));
                for worker in self.rollouts.workers.get_mut(id).into_iter().flatten() {
                    worker.is_left |= is_over && worker.is_named(&rotation.left_behind);
                }
            }
        }
    }

    /// The components of a cluster that the documents have named as left behind, and that run since.
    pub(super) fn left_behind(&self, id: &ClusterId) -> BTreeSet<(PodName, RotatedKey)> {
        let named = self.rollouts.history.left_behind.iter().filter(|((pod, _), _)| pod.cluster == *id);
        let runs_since = |pod: &PodName, at: Instant| {
            let mut processes = self.machines.values().flat_map(|machine| machine.runtime.processes());
            processes.any(|(kept, process)| kept.pod == *pod && process.program.is_main() && process.since <= at)
        };
        named.filter(|((pod, _), at)| runs_since(pod, **at)).map(|(named, _)| named.clone()).collect()
    }

    /// What a running component trusts although a rotation has removed it. Everything responds in a settled fleet.
    pub(super) fn trusted_afterwards(&self, cluster: &Cluster, id: &ClusterId) -> Option<String> {
        let running = running_components(&self.machines, id, |_, _| true);
        let mut keys = RotatedKey::ALL
            .into_iter()
            .filter(|key| cluster.rotation(*key).is_some_and(|rotation| rotation.phase == RotationPhase::Completed));
        keys.find_map(|key| {
            let places = PRESENTED_CREDENTIALS.iter().filter(|credential| credential.key == key).map(|one| one.to);
            let mut files = places.flat_map(|(role, path)| {
                let of_role = running.iter().filter(move |one| one.role == role);
                of_role.filter_map(move |one| Some((one.name, path, *one.files.get(path)?)))
            });
            let removed: Vec<&Vec<u8>> = self.removed_generations(id, key).collect();
            let (name, path, _) = files.find(|(_, _, file)| removed.iter().any(|one| has_authority(file, one)))?;
            Some(format!("{path} of {name} has a previous {key}"))
        })
    }

    fn removed_generations<'a>(&'a self, id: &'a ClusterId, key: RotatedKey) -> impl Iterator<Item = &'a Vec<u8>> {
        let known = self.rollouts.history.generations.get(&(id.clone(), key));
        known.into_iter().flatten().filter(move |one| {
            let mut current =
                ["active", "next", "previous"].into_iter().filter_map(|name| generation(&self.saved, id, key, name));
            !current.any(|current| current == one.as_slice())
        })
    }

    /// Changes the saved documents as if the last pass had left the previous generation in the bundle of each immediate rotation that ended.
    pub(super) fn plant_trust_afterwards(&mut self) {
        if self.bug != Some(Bug::InRollout(RolloutBug::KeepsTrustAfterwards)) {
            return;
        }
        for (id, key) in self.rollouts.history.immediate.clone() {
            let mut clusters = self.saved.clusters.values();
            let cluster = clusters.find(|cluster| cluster.id() == Some(&id));
            let rotation = cluster.and_then(|cluster| cluster.rotation(key));
            let removed = self.removed_generations(&id, key).next().cloned();
            let has_ended = rotation.is_some_and(|rotation| !rotation.is_running());
            let Some(removed) = removed.filter(|_| has_ended) else { continue };
            let name = SecretName::of(&id, secret_of(key));
            let Some(secret) = self.saved.secrets.get_mut(&name) else { continue };
            let bundle = format!("bundle.{}", verifying_half(key));
            let values = secret.data.get_or_insert_default();
            let Some(ByteString(mut content)) = values.remove(&bundle) else { continue };
            if !has_authority(&content, &removed) {
                content.extend(removed);
            }
            values.insert(bundle, ByteString(content));
        }
    }
}

/// Until when a phase waits for workers that are away.
fn deadline(cluster: &Cluster, rotation: &KeyRotation) -> Option<Timestamp> {
    let seconds = cluster.spec.certificates.rotation_deadline.seconds();
    rotation.since.0.checked_add(SignedDuration::from_secs(i64::try_from(seconds).ok()?)).ok()
}

/// The part of a generation with which others verify.
fn verifying_half(key: RotatedKey) -> &'static str {
    if key == RotatedKey::ServiceAccount { "pub" } else { "crt" }
}

fn generation<'a>(documents: &'a Documents, id: &ClusterId, key: RotatedKey, name: &str) -> Option<&'a [u8]> {
    let data = documents.secrets.get(&SecretName::of(id, secret_of(key)))?.data.as_ref()?;
    Some(data.get(format!("{name}.{}", verifying_half(key)).as_str())?.0.as_slice())
}
