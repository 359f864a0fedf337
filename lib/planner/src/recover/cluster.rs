//! Recovers one cluster: compares its documents with what machines hold of it.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::ToString,
    vec::Vec,
};

use keelway_api::{
    Cluster, Documents, Time,
    cluster::{EtcdStatus, Initialization, MemberPhase},
    component::{ComponentSpec, ComponentStage, ComponentStatus},
    documents::SecretName,
    machine::Start,
    name::{ClusterId, ClusterRef, ComponentName, PodName},
    release::find,
    role::{API, Role},
    rotation::{RotatedKey, RotationPhase},
    store_observation::StoreObservation,
};

use super::{
    AnsweringMachines, ConfigAge, DifferenceKind, HeldConfig, HeldPod, RecoveryDifference, UnclearReason,
    keys::{self, OtherKey},
    pod::{component_spec, differing, role_of},
};
use crate::{component_set, secret_names::KUBERNETES, store_start};

pub(super) struct ClusterRecovery<'a> {
    pub(super) documents: &'a mut Documents,
    pub(super) fleet: &'a AnsweringMachines<'a>,
    pub(super) reference: &'a ClusterRef,
    pub(super) id: &'a ClusterId,
    pub(super) pods: Vec<HeldPod<'a>>,
    /// What its etcd members report, if they were asked.
    pub(super) seen: Option<&'a StoreObservation>,
    /// Whether machines hold something of it that cannot be adopted.
    pub(super) is_unclear: bool,
    /// Whether the members of its store may differ from the documents.
    pub(super) needs_store: bool,
    /// Members that the store removed after the backup.
    pub(super) removed: BTreeSet<ComponentName>,
    differences: Vec<RecoveryDifference>,
}

/// The result of the recovery of one cluster.
pub(super) struct ClusterDifferences {
    pub(super) differences: Vec<RecoveryDifference>,
    /// Whether the members of its store may differ from the documents.
    pub(super) needs_store: bool,
}

impl<'a> ClusterRecovery<'a> {
    pub(super) fn new(
        documents: &'a mut Documents,
        fleet: &'a AnsweringMachines<'a>,
        (reference, id): (&'a ClusterRef, &'a ClusterId),
        seen: Option<&'a StoreObservation>,
    ) -> Self {
        let pods = fleet.pods(id);
        Self {
            documents,
            fleet,
            reference,
            id,
            pods,
            seen,
            is_unclear: false,
            needs_store: false,
            removed: BTreeSet::new(),
            differences: Vec::new(),
        }
    }

    pub(super) fn run(mut self, now: &Time) -> ClusterDifferences {
        self.compare_keys();
        self.complete_rotation(now);
        if self.is_gone() {
            self.note_cluster(DifferenceKind::Gone);
            self.keep_members_from_empty_starts();
        } else {
            self.recover_store(now);
            self.recover_components();
            self.stop_removed_members();
            self.recover_facts();
            self.keep_awake();
            self.note_strangers();
            self.note_what_is_not_held();
        }
        if self.is_unclear {
            self.pause();
        }
        ClusterDifferences { differences: self.differences, needs_store: self.needs_store }
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        self.documents.clusters.get(self.reference).map(|cluster| &**cluster)
    }

    pub(super) fn store_mut(&mut self) -> Option<&mut EtcdStatus> {
        self.documents.clusters.get_mut(self.reference)?.status.as_mut()?.etcd.as_mut()
    }

    pub(super) fn note_cluster(&mut self, kind: DifferenceKind) {
        self.differences.push(RecoveryDifference::of(self.reference, kind));
    }

    pub(super) fn note(&mut self, component: &ComponentName, kind: DifferenceKind) {
        let subject = format!("{}/{component}", self.reference);
        self.differences.push(RecoveryDifference { subject, kind });
    }

    pub(super) fn unclear(&mut self, held: HeldPod, why: UnclearReason) {
        self.is_unclear = true;
        let kind = DifferenceKind::Unclear { machine: held.machine.clone(), why };
        self.note(&held.name.component, kind);
    }

    /// The authorities and keys on machines count: a cluster with other Secrets becomes `Blocked` by their digests.
    fn compare_keys(&mut self) {
        let (others, minted) = keys::compare(self.documents, self.id, &self.pods);
        if others.is_empty() {
            return;
        }
        let is_known = self.cluster().is_some_and(|cluster| keys::are_all_known(cluster, &minted));
        if is_known && let Some(cluster) = self.documents.clusters.get_mut(self.reference) {
            let known = &mut cluster.status.get_or_insert_default().minted;
            for (secret, digest) in minted {
                let is_other = others.iter().any(|other| other.secret == secret);
                known
                    .entry(secret)
                    .and_modify(|known| {
                        if is_other {
                            known.clone_from(&digest);
                        }
                    })
                    .or_insert(digest);
            }
        }
        // If a digest were missing, a pass would mint a second authority.
        self.is_unclear |= !is_known;
        for OtherKey { secret, is_missing } in others {
            self.note_cluster(DifferenceKind::OtherKey { secret, is_missing });
        }
    }

    /// Documents from before the completion of a rotation have an authority that no machine trusts any more. It must not sign certificates of servers
    /// again, so the rotation continues where it is removed.
    fn complete_rotation(&mut self, now: &Time) {
        let name = SecretName::of(self.id, KUBERNETES);
        let data = self.documents.secrets.get(&name).and_then(|secret| secret.data.as_ref());
        let generation = |key: &str| data.and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        let (Some(active), Some(_)) = (generation("active.crt"), generation("previous.crt")) else { return };
        let mut bundles = self.pods.iter().filter_map(keys::kubernetes_authorities).peekable();
        let is_held = bundles.peek().is_some();
        if !is_held || !bundles.all(|bundle| bundle == active) {
            return;
        }
        let Some(cluster) = self.documents.clusters.get_mut(self.reference) else { return };
        let rotations = cluster.status.get_or_insert_default().rotations.get_or_insert_default();
        if let Some(rotation) = rotations.rotation_mut(RotatedKey::KubernetesAuthority)
            && rotation.phase < RotationPhase::Retiring
        {
            (rotation.phase, rotation.since) = (RotationPhase::Retiring, now.clone());
        }
    }

    /// Whether machines held the cluster before, and none does any more.
    fn is_gone(&self) -> bool {
        let Some(cluster) = self.cluster().filter(|cluster| !cluster.deleted()) else { return false };
        let is_born = cluster.status.as_ref().is_some_and(|status| status.etcd.is_some());
        let ages =
            self.documents.components_of(self.id).map(|(_, component)| self.fleet.age(&component.spec.hypervisor));
        let ages: Vec<Option<ConfigAge>> = ages.collect();
        let was_there = ages.iter().flatten().any(|age| age.is_after_documents()) && !ages.contains(&None);
        is_born && was_there && !self.fleet.clusters.contains_key(self.id)
    }

    /// A member that must have a mark and has none has lost its data, and is not started.
    fn keep_members_from_empty_starts(&mut self) {
        for member in self.store_mut().into_iter().flat_map(|store| store.members.values_mut()) {
            member.phase = member.phase.max(MemberPhase::Marked);
        }
    }

    fn recover_components(&mut self) {
        let mut by_name: BTreeMap<&PodName, Vec<HeldPod>> = BTreeMap::new();
        for held in &self.pods {
            by_name.entry(held.name).or_default().push(*held);
        }
        for pods in by_name.into_values() {
            match pods[..] {
                [held] => self.recover_component(held),
                _ => self.note_twice(&pods),
            }
        }
    }

    fn note_twice(&mut self, pods: &[HeldPod<'a>]) {
        let on = |held: &HeldPod| {
            self.documents.components.get(held.name).map(|found| &found.spec.hypervisor) == Some(held.machine)
        };
        let others: Vec<HeldPod> = pods.iter().filter(|held| !on(held)).copied().collect();
        for held in others {
            self.unclear(held, UnclearReason::HeldTwice);
        }
    }

    fn recover_component(&mut self, held: HeldPod<'a>) {
        let Some(cluster) = self.cluster() else { return };
        let found = self.documents.components.get(held.name);
        if found.is_some() && held.age != ConfigAge::Later {
            return;
        }
        let spec = match component_spec(cluster, (held.machine, held.name, held.pod)) {
            Ok(spec) => spec,
            Err(why) => return self.unclear(held, why),
        };
        let Some(found) = found else { return self.adopt(held, spec) };
        let fields = differing(&found.spec, &spec);
        let moved = found.spec.hypervisor != spec.hypervisor;
        if moved && self.fleet.age(&found.spec.hypervisor).is_none() {
            let why = UnclearReason::PlacedOnSilent(found.spec.hypervisor.clone());
            return self.unclear(held, why);
        }
        let stops = found.is_stopping();
        if !fields.is_empty() || stops {
            let placement = if moved { spec.placement.clone() } else { found.spec.placement.clone() };
            let status = found.status.clone().unwrap_or_default();
            if let Some(component) = self.documents.components.get_mut(held.name) {
                let newer = core::mem::take(&mut component.spec.newer);
                component.spec = ComponentSpec { placement, newer, ..spec };
                component.status = Some(if moved || stops { status_of(held) } else { status });
            }
        }
        if !fields.is_empty() {
            let kind = DifferenceKind::Changed { machine: held.machine.clone(), fields };
            self.note(&held.name.component, kind);
        }
        if self.take_certificates(held) {
            self.note(&held.name.component, DifferenceKind::Certificates);
        }
    }

    fn adopt(&mut self, held: HeldPod, spec: ComponentSpec) {
        let mut component = component_set::document(held.name, spec);
        component.status = Some(status_of(held));
        self.documents.components.insert(held.name.clone(), component);
        self.take_certificates(held);
        self.note(&held.name.component, DifferenceKind::NoDocument { machine: held.machine.clone() });
    }

    /// Keeps the certificates of a component in its Secret, so that they are not issued again. Returns whether they differed.
    fn take_certificates(&mut self, held: HeldPod) -> bool {
        let name = SecretName::of(self.id, held.name.component.as_str());
        let values = keys::certificates(held.name.component.as_str(), held.pod);
        let known = self.documents.secrets.get(&name).and_then(|secret| secret.data.as_ref());
        let others: Vec<_> =
            values.into_iter().filter(|(key, value)| known.and_then(|known| known.get(key)) != Some(value)).collect();
        if others.is_empty() {
            return false;
        }
        self.documents.put_secret_values(&name, others);
        true
    }

    /// Recovers what passes record once, from the configs of the machines.
    fn recover_facts(&mut self) {
        let of_role = |which: &dyn Fn(Role) -> bool| -> Vec<HeldPod> {
            self.pods
                .iter()
                .filter(|held| role_of(&held.name.component).is_some_and(|(role, _)| which(role)))
                .copied()
                .collect()
        };
        let waits = |role: Role| {
            matches!(
                role,
                Role::KubeControllerManager | Role::KubeScheduler | Role::ClusterController | Role::FleetController
            )
        };
        let has_started = |held: &HeldPod| matches!(held.pod.start, Start::Always | Start::Stopped);
        let has_served = of_role(&waits).iter().any(has_started);
        let Some(cluster) = self.cluster() else { return };
        let wanted = find(&cluster.spec.version);
        let running = self.documents.components_of(self.id).filter_map(|(_, component)| find(&component.spec.version));
        let newest = running.max();
        let is_newer = wanted.zip(newest).filter(|(wanted, newest)| wanted.minor() < newest.minor());
        let ports: BTreeSet<u16> = self
            .documents
            .components_of(self.id)
            .filter(|(pod, component)| {
                component.spec.role == Role::Ingress && self.pods.iter().any(|held| held.name == *pod)
            })
            .map(|(_, component)| component.spec.port(API))
            .collect();
        let known = cluster.status.as_ref().and_then(|status| status.ingress_port);
        let other_port = ports.first().copied().filter(|port| ports.len() == 1 && known != Some(*port));
        let is_news = has_served && !cluster.is_initialized();
        if let Some(cluster) =
            self.documents.clusters.get_mut(self.reference).filter(|_| is_news || other_port.is_some())
        {
            let status = cluster.status.get_or_insert_default();
            if is_news {
                status.initialization = Some(Initialization { control_plane_initialized: true });
            }
            if other_port.is_some() {
                status.ingress_port = other_port;
            }
        }
        if is_news {
            self.note_cluster(DifferenceKind::Initialized);
        }
        if let Some(port) = other_port {
            self.note_cluster(DifferenceKind::IngressPort { port });
        }
        if let Some((wanted, newest)) = is_newer {
            let (wanted, runs) = (wanted.to_string(), newest.to_string());
            self.note_cluster(DifferenceKind::NewerRelease { wanted, runs });
        }
    }

    /// A cluster that was woken after the backup stays awake: its document would stop all its components at once.
    fn keep_awake(&mut self) {
        let is_asleep = |cluster: &Cluster| cluster.spec.asleep || cluster.is_sleeping();
        let relied_on = |held: &&HeldPod| {
            let role = role_of(&held.name.component).map(|(role, _)| role);
            matches!(role, Some(Role::Etcd | Role::KubeApiserver)) && held.age == ConfigAge::Later
        };
        let is_awake = self.pods.iter().filter(relied_on).any(|held| !held.pod.start.stops());
        if !is_awake || !self.cluster().is_some_and(is_asleep) {
            return;
        }
        if let Some(cluster) = self.documents.clusters.get_mut(self.reference) {
            cluster.spec.asleep = false;
            cluster.status.get_or_insert_default().sleep = None;
        }
        self.note_cluster(DifferenceKind::Awake);
    }

    /// Reports pods on machines with unknown config that no document names.
    fn note_strangers(&mut self) {
        let strangers = self.fleet.strangers(self.id);
        let strangers: Vec<_> =
            strangers.into_iter().filter(|(_, pod)| !self.documents.components.contains_key(pod)).collect();
        for (machine, pod) in strangers {
            self.is_unclear = true;
            let why = UnclearReason::UnreadableConfig;
            self.note(&pod.component, DifferenceKind::Unclear { machine: machine.clone(), why });
        }
    }

    /// Reports components of the documents that their machines held before and hold no more.
    fn note_what_is_not_held(&mut self) {
        let is_born = self.cluster().is_some_and(|cluster| {
            !cluster.deleted() && cluster.status.as_ref().is_some_and(|status| status.etcd.is_some())
        });
        if !is_born {
            return;
        }
        let missing = self.documents.components_of(self.id).filter(|(pod, component)| {
            let is_held = self.pods.iter().any(|held| held.name == *pod);
            let has_config = matches!(self.fleet.machine(&component.spec.hypervisor), Some(held) if !matches!(held.config, HeldConfig::Unknown(_)));
            let is_later = self.fleet.age(&component.spec.hypervisor).is_some_and(ConfigAge::is_after_documents);
            !is_held && has_config && is_later && !component.is_stopping()
        });
        let missing: Vec<(PodName, ComponentSpec)> =
            missing.map(|(pod, component)| (pod.clone(), component.spec.clone())).collect();
        for (pod, spec) in missing {
            let machine = spec.hypervisor.clone();
            let state = self.fleet.machine(&machine).map(|held| &held.state);
            let has_data = state.is_some_and(|state| state.data_of(&pod, store_start::DATA).marked);
            if spec.role == Role::Etcd && !has_data {
                self.mark_member(&pod.component);
                self.note(&pod.component, DifferenceKind::DataGone { machine });
            } else {
                self.note(&pod.component, DifferenceKind::NotHeld { machine });
            }
        }
    }

    fn mark_member(&mut self, name: &ComponentName) {
        if let Some(member) = self.store_mut().and_then(|store| store.members.get_mut(name)) {
            member.phase = member.phase.max(MemberPhase::Marked);
        }
    }

    fn pause(&mut self) {
        if let Some(cluster) = self.documents.clusters.get_mut(self.reference) {
            cluster.spec.paused = true;
        }
        self.note_cluster(DifferenceKind::Paused);
    }
}

/// A component that runs was ready before, as far as its machine knows. An ingress that passes connections to it continues to do so.
fn status_of(held: HeldPod) -> ComponentStatus {
    let stage = if held.runs { ComponentStage::Serving } else { ComponentStage::Joining };
    let mut status = ComponentStatus::default();
    status.stage = stage;
    status
}
