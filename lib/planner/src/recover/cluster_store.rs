//! Recovers the store of a cluster: its members, and what was recorded when it was created.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::ToString,
    vec::Vec,
};

use keelway_api::{
    Component, Time,
    change::ClusterBirth,
    cluster::{EtcdStatus, VPN_MTU_UNRECORDED},
    component::ComponentStage,
    name::{ComponentName, HypervisorName, PodName},
    role::Role,
};

use super::{
    ConfigAge, DifferenceKind, HeldPod, UnclearReason,
    cluster::ClusterRecovery,
    member_list::{self, MemberAlignment},
    pod::{command, flag, role_of},
    store::{HeldMember, rebuilt},
};
use crate::pod::gateway_mtu;

impl ClusterRecovery<'_> {
    pub(super) fn recover_store(&mut self, now: &Time) {
        let members = HeldMember::all(&self.pods);
        let Some(cluster) = self.cluster() else { return };
        match cluster.status.as_ref().and_then(|status| status.etcd.as_ref()) {
            Some(store) => {
                self.needs_store = self.has_changed_members(store, &members);
                self.raise_phases(&members);
                self.align_members(&members);
            }
            None if self.pods.is_empty() || (members.is_empty() && self.fleet.is_complete) => {}
            None => {
                self.needs_store = members.iter().any(|member| !member.is_first);
                self.rebuild_store(&members, now);
            }
        }
    }

    /// Whether the members may have changed since the backup: a machine holds a member that is not recorded, or the config of a machine with a
    /// member is later than the documents.
    fn has_changed_members(&self, store: &EtcdStatus, members: &[HeldMember]) -> bool {
        let mut components = self.documents.components_of(self.id).filter(|(_, one)| one.spec.role == Role::Etcd);
        let is_later = |(_, component): (&PodName, &Component)| {
            self.fleet.age(&component.spec.hypervisor).is_some_and(ConfigAge::is_after_documents)
        };
        members.iter().any(|member| !member.is_recorded(store)) || components.any(is_later)
    }

    /// Aligns the recorded members with what the store reports.
    fn align_members(&mut self, members: &[HeldMember]) {
        let (seen, id) = (self.seen, self.id.clone());
        let machines: BTreeMap<ComponentName, HypervisorName> = self
            .documents
            .components_of(&id)
            .map(|(pod, component)| (pod.component.clone(), component.spec.hypervisor.clone()))
            .collect();
        let used = self.used_names(members);
        let Some(store) = self.store_mut() else { return };
        if seen.is_some_and(|seen| !member_list::is_same_store(store, seen)) {
            if let Some(member) = members.first() {
                self.unclear(member.held, UnclearReason::OtherStoreId);
            }
            return;
        }
        let found = match seen.map(|seen| (seen, seen.list.as_ref())) {
            Some((seen, Some(list))) => {
                member_list::align(store, members, (seen, list), |name| machines.get(name).cloned())
            }
            Some((seen, None)) => {
                let added = member_list::add_reported(store, members, seen);
                MemberAlignment { added, ..MemberAlignment::default() }
            }
            None => MemberAlignment::default(),
        };
        if seen.is_some() {
            member_list::reserve_names(store, used.iter().chain(&found.removed));
        }
        let is_unclear = |member: &&HeldMember| !member.is_recorded(store) && !found.removed.contains(member.name());
        let unclear: Vec<HeldPod> = members.iter().filter(is_unclear).map(|member| member.held).collect();
        for held in unclear {
            self.unclear(held, UnclearReason::ReplacedMembers);
        }
        self.note_alignment(members, found);
    }

    /// The names of members that machines know: those that run, those with which they started, and those that left data.
    fn used_names(&self, members: &[HeldMember]) -> BTreeSet<ComponentName> {
        let started = members.iter().flat_map(|member| member.initial_cluster.keys().cloned());
        let with_data = self.fleet.machines.values().flat_map(|(machine, _)| machine.state.pods_with_marked_data());
        let with_data = with_data.filter(|pod| pod.cluster == *self.id).map(|pod| pod.component.clone());
        let names = members.iter().map(|member| member.name().clone()).chain(started).chain(with_data);
        names.filter(|name| role_of(name).is_some_and(|(role, _)| role == Role::Etcd)).collect()
    }

    fn note_alignment(&mut self, members: &[HeldMember], found: MemberAlignment) {
        for name in found.added {
            let machine =
                members.iter().find(|member| *member.name() == name).map(|member| member.held.machine.clone());
            if let Some(machine) = machine {
                self.note(&name, DifferenceKind::MemberAdded { machine });
            }
        }
        for name in &found.removed {
            self.note(name, DifferenceKind::MemberRemoved);
        }
        for (id, name) in found.unknown {
            // A pass would not change the store, and would advise to remove the member.
            self.is_unclear = true;
            self.note_cluster(DifferenceKind::MemberUnknown { id, name });
        }
        self.removed = found.removed;
    }

    /// The next pass stops the members that the store removed, and components that never became members. Those that no longer run are
    /// forgotten.
    pub(super) fn stop_removed_members(&mut self) {
        let mut over = core::mem::take(&mut self.removed);
        over.extend(self.unused_components());
        for component in over {
            let name = PodName { cluster: self.id.clone(), component };
            if self.is_stopped(&name) {
                // Its ports may belong to another component by now. The order to remove its data is in the record of the member.
                self.documents.components.remove(&name);
            } else if let Some(component) = self.documents.components.get_mut(&name) {
                component.status.get_or_insert_default().stage = ComponentStage::Stopping;
            }
        }
    }

    /// Whether the machine of a component was observed without its processes, and its config does not name it.
    fn is_stopped(&self, name: &PodName) -> bool {
        let machine = self.documents.components.get(name).map(|component| &component.spec.hypervisor);
        let machine = machine.and_then(|machine| self.fleet.machine(machine));
        machine.is_some_and(|machine| !machine.state.runs(name)) && self.pods.iter().all(|held| held.name != name)
    }

    /// The components of members that a backup was adding, and that were given up since. Their names are not used again.
    fn unused_components(&self) -> Vec<ComponentName> {
        let store = self.cluster().and_then(|cluster| cluster.status.as_ref()?.etcd.as_ref());
        let Some(store) = store.filter(|_| self.seen.is_some_and(|seen| seen.list.is_some())) else {
            return Vec::new();
        };
        let is_used = |name: &ComponentName| {
            store.members.contains_key(name)
                || store.change.as_ref().is_some_and(|change| change.adds(name))
                || self.pods.iter().any(|held| held.name.component == *name)
        };
        let members = self.documents.components_of(self.id).filter(|(_, component)| component.spec.role == Role::Etcd);
        members.map(|(pod, _)| pod.component.clone()).filter(|name| !is_used(name)).collect()
    }

    fn raise_phases(&mut self, members: &[HeldMember]) {
        for member in members {
            let name = &member.held.name.component;
            let known = self.store_mut().and_then(|store| store.members.get_mut(name));
            let Some(known) = known.filter(|known| known.phase < member.phase) else { continue };
            known.phase = member.phase;
            self.note(name, DifferenceKind::MemberPhase { phase: member.phase });
        }
    }

    fn rebuild_store(&mut self, members: &[HeldMember], now: &Time) {
        let Some(cluster) = self.cluster() else { return };
        let mut birth = ClusterBirth::of(&cluster.spec);
        let mtu = self.pods.iter().find_map(|held| gateway_mtu(held.pod)).filter(|_| cluster.spec.vpn.mtu.is_none());
        if let Some(mtu) = mtu {
            birth.vpn.mtu = (mtu != VPN_MTU_UNRECORDED).then_some(mtu);
        }
        let has_list = self.seen.is_some_and(|seen| seen.list.is_some());
        let rebuilt = rebuilt(self.id, members, has_list, now);
        let rebuilt = rebuilt.and_then(|store| other_birth(&birth, &self.pods).map_or(Ok(store), Err));
        match rebuilt {
            Ok(store) => {
                if let Some(cluster) = self.documents.clusters.get_mut(self.reference) {
                    let status = cluster.status.get_or_insert_default();
                    status.etcd = Some(store);
                    status.birth = Some(birth);
                }
                self.align_members(members);
                self.note_rebuilt(members);
            }
            Err(why) => {
                // A pass would create a second store beside the existing one.
                if let Some(held) = self.pods.first().copied() {
                    self.unclear(held, why);
                }
            }
        }
    }

    fn note_rebuilt(&mut self, members: &[HeldMember]) {
        let Some(store) = self.store_mut() else { return };
        let names: Vec<ComponentName> = store.staying_members().map(|(name, _)| name.clone()).collect();
        let is_held = |name: &&ComponentName| members.iter().any(|member| member.name() == *name);
        let missing: Vec<ComponentName> = names.iter().filter(|name| !is_held(name)).cloned().collect();
        self.note_cluster(DifferenceKind::StoreBorn { members: names.iter().map(ToString::to_string).collect() });
        for name in missing {
            self.note(&name, DifferenceKind::MemberMissing);
        }
    }
}

/// Why a cluster cannot have been created with the spec of its document.
fn other_birth(birth: &ClusterBirth, pods: &[HeldPod]) -> Option<UnclearReason> {
    let values = [
        ("service-cluster-ip-range", birth.network.service_cidrs.join(","), "spec.network.serviceCIDRs"),
        ("cluster-cidr", birth.network.pod_cidrs.join(","), "spec.network.podCIDRs"),
        ("service-account-issuer", birth.service_account_issuer.clone(), "spec.network.dnsDomain"),
    ];
    values.into_iter().find_map(|(name, recorded, field)| {
        let mut flags = pods.iter().filter_map(|held| flag(command(held.pod), name));
        let found = flags.find(|found| *found != recorded)?.to_string();
        Some(UnclearReason::OtherBirth { flag: name, found, field, recorded })
    })
}
