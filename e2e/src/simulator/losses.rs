//! Machines that are lost for good, some two at once, and what people do then: they annotate the machines, and let a store without quorum continue.

use std::{collections::BTreeSet, time::Duration};

use keelway_api::{
    Hypervisor, Shared, Time,
    cluster::EtcdStatus,
    hypervisor::LOST_ANNOTATION,
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    store_rebuild::QuorumRecovery,
};
use tokio::time::Instant;

use super::{
    machine::{Reachability, SimulatedHypervisor},
    person::PersonAction,
    program::SimulatedMember,
    random::Random,
    state::SimulationState,
};

/// One of this many runs has losses.
const RUNS: u32 = 4;
/// More epochs of a run in which a store is to be rebuilt, which takes many passes.
const MORE_EPOCHS: u64 = 2;
/// A machine does not return in this time, which is longer than any run.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The fewest members of a store that can lose its quorum and has a member that remains.
const FEWEST_MEMBERS: usize = 3;

/// What is lost, with a generator of its own, so that the rest of a run does not depend on it.
pub(super) struct SimulatedLosses {
    random: Random,
    /// Whether machines are lost in this run.
    pub(super) happen: bool,
    /// Whether a store is to lose its quorum as soon as it works.
    pub(super) ends_a_quorum: bool,
    pub(super) lost: BTreeSet<HypervisorName>,
}

impl SimulatedLosses {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(24) ^ 0x1057);
        let happen = random.one_in(RUNS);
        let ends_a_quorum = happen && random.one_in(2);
        Self { random, happen, ends_a_quorum, lost: BTreeSet::new() }
    }

    pub(super) fn more_epochs(&self) -> u64 {
        if self.ends_a_quorum { MORE_EPOCHS } else { 0 }
    }
}

impl SimulationState {
    /// Loses machines now and then. A person notices it some seconds later.
    pub(super) fn advance_losses(&mut self) {
        if !self.losses.happen || self.weather.calm || self.pass.stale || self.manual_edit.is_some() {
            return;
        }
        if self.losses.ends_a_quorum {
            self.end_a_quorum();
        } else if self.losses.random.one_in(20) {
            let machines: Vec<HypervisorName> = self.machines.keys().cloned().collect();
            for _ in 0..self.losses.random.count(1, 2) {
                if let Some(machine) = self.losses.random.pick(machines.clone()) {
                    self.lose(&machine);
                }
            }
        }
        if self.losses.random.one_in(3) {
            self.annotate_lost_machines();
        }
        if self.losses.random.one_in(3) {
            self.request_recoveries();
        }
    }

    /// Takes a machine away with everything on it, unless it is the last one of its role with room.
    fn lose(&mut self, machine: &HypervisorName) -> bool {
        let Some(role) = self.saved.hypervisors.get(machine).map(|document| document.spec.role) else { return false };
        let has_room = |(name, document): (&HypervisorName, &Shared<Hypervisor>)| {
            name != machine && document.spec.role == role && self.is_roomy(name, document)
        };
        if self.losses.lost.contains(machine) || !self.saved.hypervisors.iter().any(has_room) {
            return false;
        }
        let Some(found) = self.machines.get_mut(machine).filter(|found| found.strangers.owner.is_none()) else {
            return false;
        };
        found.empty(Instant::now() + FOR_GOOD);
        self.losses.lost.insert(machine.clone());
        self.counts.faults += 1;
        self.trace_line(format!("FAULT {machine} is lost for good"));
        true
    }

    /// Loses the machines of most members of a store, and not of all.
    fn end_a_quorum(&mut self) {
        let ids: Vec<_> = self.stores.iter().filter(|(_, store)| store.leader().is_some()).map(|(id, _)| id).collect();
        let hosts = |id: &&ClusterId| {
            let members = self.machines.iter().flat_map(|(name, machine)| {
                let of_store = machine.disk.members.iter().filter(|(_, member)| member.cluster == **id);
                of_store.map(move |_| name.clone())
            });
            members.collect::<Vec<HypervisorName>>()
        };
        let found = ids.iter().map(hosts).find(|hosts| hosts.len() >= FEWEST_MEMBERS && !self.has_lost(hosts));
        let Some(hosts) = found else { return };
        let mut left = hosts.len();
        for machine in hosts.iter().collect::<BTreeSet<_>>() {
            let here = hosts.iter().filter(|host| *host == machine).count();
            if left * 2 > hosts.len() && left > here && self.lose(machine) {
                left -= here;
            }
        }
    }

    fn has_lost(&self, hosts: &[HypervisorName]) -> bool {
        hosts.iter().any(|host| self.losses.lost.contains(host))
    }

    /// Whether a machine can take many components of its role.
    pub(super) fn is_roomy(&self, name: &HypervisorName, document: &Hypervisor) -> bool {
        document.spec.port_range.to > 22_000 && !self.losses.lost.contains(name)
    }

    /// Changes documents as `keelway hypervisor drain NAME` and the annotation `keelway.dev/lost=true` do.
    pub(super) fn annotate_lost_machines(&mut self) {
        let unmarked = |name: &&HypervisorName| {
            let document = self.saved.hypervisors.get(*name);
            document.is_some_and(|document| !(document.is_lost() && document.spec.drain))
        };
        for name in self.losses.lost.iter().filter(unmarked).cloned().collect::<Vec<_>>() {
            if let Some(document) = self.saved.hypervisors.get_mut(&name) {
                let annotations = document.metadata.annotations.get_or_insert_default();
                annotations.insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
                document.spec.drain = true;
                document.spec.unschedulable = true;
            }
            self.record_action(PersonAction::MarksAsLost);
            self.trace_line(format!("a person drains {name}, and marks it as lost"));
        }
    }

    /// Changes documents as `keelway cluster recover-quorum` does, where the members that are not lost are no majority.
    pub(super) fn request_recoveries(&mut self) {
        for (name, lost) in self.stores_without_quorum() {
            let requested_at = Time(self.now());
            self.trace_line(format!("a person lets the store of {name} continue without {lost:?}"));
            if let Some(cluster) = self.saved.clusters.get_mut(&name) {
                cluster.spec.etcd.recover_quorum = Some(QuorumRecovery { requested_at, lost });
            }
            self.record_action(PersonAction::RecoversAQuorum);
        }
    }

    /// The clusters for which a pass recorded a lost quorum that nobody has answered, with their lost members.
    pub(super) fn stores_without_quorum(&self) -> Vec<(ClusterRef, Vec<ComponentName>)> {
        let clusters = self.saved.clusters.iter().filter(|(_, cluster)| !cluster.deleted());
        let stores = clusters.filter_map(|(name, cluster)| {
            let store = cluster.status.as_ref()?.etcd.as_ref()?;
            let since = store.quorum_lost_since.as_ref().filter(|_| store.rebuild.is_none())?;
            let request = cluster.spec.etcd.recover_quorum.as_ref();
            let is_answered = request.is_some_and(|request| request.requested_at.0 >= since.0);
            let (all, lost) = self.members_and_lost(cluster.id()?, store);
            let is_over = lost.len() * 2 >= all && lost.len() < all;
            (is_over && !is_answered).then(|| (name.clone(), lost))
        });
        stores.collect()
    }

    /// The clusters that were being created when a machine with one of their first members was lost.
    pub(super) fn clusters_lost_at_birth(&self) -> Vec<ClusterRef> {
        let clusters =
            self.saved.clusters.iter().filter(|(_, cluster)| !cluster.deleted() && !cluster.is_initialized());
        let of_lost = clusters.filter(|(_, cluster)| {
            let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
            let lost = cluster.id().zip(store).map(|(id, store)| self.members_and_lost(id, store).1);
            lost.is_some_and(|lost| !lost.is_empty())
        });
        of_lost.map(|(name, _)| name.clone()).collect()
    }

    /// The number of members of a store, and those on lost machines.
    fn members_and_lost(&self, id: &ClusterId, store: &EtcdStatus) -> (usize, Vec<ComponentName>) {
        let names: Vec<&ComponentName> = store.staying_members().map(|(name, _)| name).collect();
        let is_lost = |name: &&&ComponentName| {
            let pod = PodName { cluster: id.clone(), component: (**name).clone() };
            let component = self.saved.components.get(&pod);
            component.is_some_and(|component| self.losses.lost.contains(&component.spec.hypervisor))
        };
        let lost = names.iter().filter(is_lost).map(|name| (*name).clone()).collect();
        (names.len(), lost)
    }

    /// Starts a member with data and `--force-new-cluster`: it continues alone.
    pub(super) fn force_member(&mut self, machine: &HypervisorName, pod: &PodName, before: &SimulatedMember) {
        let Some(id) = before.id else { return };
        let Some(store) = self.stores.get(&before.cluster).filter(|store| store.list().len() > 1) else { return };
        let newest = |(name, found): (&HypervisorName, &SimulatedHypervisor)| {
            let ids = found.disk.members.values().filter(|member| member.cluster == before.cluster);
            let indices = ids.filter_map(|member| store.index(member.id?));
            (!self.losses.lost.contains(name)).then(|| indices.max()).flatten()
        };
        let newest = self.machines.iter().filter_map(newest).max();
        let is_oldish = store.index(id) < newest;
        let is_copied = self.machines.get(machine).is_some_and(|found| found.disk.is_copied(pod));
        let others = |(name, _): &(&PodName, &SimulatedMember)| *name != pod && self.was_seen_running(name);
        let other = self.members(&before.cluster).find(others).map(|(name, _)| name.clone());
        if is_oldish {
            self.report_violation("a store continues with the newest data that is left", pod.to_string());
        }
        if !is_copied {
            self.report_violation("a member continues alone from data that was copied", pod.to_string());
        }
        if let Some(other) = other {
            self.report_violation("a member continues alone only while no other one runs", format!("{pod}, {other}"));
        }
        if let Some(store) = self.stores.get_mut(&before.cluster) {
            store.force(id);
        }
        self.trace_line(format!("{pod} continues alone"));
    }

    /// Whether the current pass observed that a pod runs. One that returned since then is not the fault of the pass.
    fn was_seen_running(&self, pod: &PodName) -> bool {
        let mut seen = self.pass.seen.machines.values().filter_map(|seen| seen.known());
        seen.any(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod && sandbox.ready))
    }
}

impl SimulatedHypervisor {
    /// Ends what keeps a machine from responding, unless it is lost for good.
    pub(super) fn restore_reach(&mut self) {
        let is_lost = matches!(self.reach, Reachability::Off { until } if until > Instant::now() + FOR_GOOD / 2);
        if !is_lost {
            self.reach = Reachability::Up;
        }
    }
}
