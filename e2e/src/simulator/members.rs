//! Simulated etcd members: their first start, their list, and the orders of passes.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    name::{ClusterId, ComponentName, HypervisorName, PodName},
    store_observation::{MemberId, StoreObservation},
};
use keelway_planner::{
    StoreOrder,
    store_model::{StoreModel, StoreRefusal},
};
use tokio::time::Instant;

use super::{
    program::{SimulatedMember, SimulatedProgram},
    runtime::SimulatedContainer,
    state::SimulationState,
};

impl SimulationState {
    /// Starts a member as etcd does. With data, it continues with that data, unless the store has removed it. Without data, it forms a new store or
    /// joins one, unless a peer knows that it ran before.
    pub(super) fn start_member(
        &mut self,
        machine: &HypervisorName,
        kept: &SimulatedContainer,
        member: &SimulatedMember,
    ) -> Result<(), String> {
        let pod = &kept.pod;
        let Some(found) = self.machines.get(machine) else { return Ok(()) };
        if let Some(before) = found.disk.members.get(pod).cloned() {
            self.choose_store(pod, &before);
            let is_removed = |id| self.stores.get(&before.cluster).is_some_and(|store| store.has_removed(id));
            if before.id.is_some_and(is_removed) {
                return Err("it was removed".to_owned());
            }
            if member.is_forced {
                self.force_member(machine, pod, &before);
            } else if let Some(found) = self.machines.get_mut(machine) {
                found.disk.begin_writes(pod);
            }
            return Ok(());
        }
        if !found.disk.is_marked(pod) {
            self.report_violation("a member starts first on data that was marked for it", pod.to_string());
        }
        self.check_birth(pod, member);
        if self.started.contains(pod) {
            self.starts_empty(pod);
            if self.members(&member.cluster).count() > 0 {
                return Err("the member has already been bootstrapped".to_owned());
            }
        }
        let id = self.first_id(member)?;
        self.started.insert(pod.clone());
        if let Some(found) = self.machines.get_mut(machine) {
            let member = SimulatedMember { id: Some(id), ..member.clone() };
            // The process knows its id from now on.
            found.disk.members.insert(pod.clone(), member);
        }
        Ok(())
    }

    /// The id of a member that starts for the first time.
    fn first_id(&mut self, member: &SimulatedMember) -> Result<MemberId, String> {
        let initial = member.initial_urls();
        if !member.joins {
            let mut disks = self.machines.values().map(|machine| &machine.disk);
            if !disks.any(|disk| disk.members.values().any(|other| other.cluster == member.cluster)) {
                self.stores.remove(&member.cluster);
            }
            let new = || StoreModel::new(&initial, member.cluster.as_str());
            let store = self.stores.entry(member.cluster.clone()).or_insert_with(new);
            let own = member.peer_urls();
            let found = store.list().iter().find(|(_, listed)| listed.peer_urls == own).map(|(id, _)| *id);
            return found.ok_or_else(|| "the member is not in the list".to_owned());
        }
        let quorum = self.has_quorum(&member.cluster);
        let store = self.stores.get_mut(&member.cluster).filter(|_| quorum).ok_or("no peer responds")?;
        store.start(member.name.as_str(), &member.peer_urls(), &initial).map_err(|refusal| refusal.to_string())
    }

    /// Returns the running etcd members of a cluster that other machines can reach.
    pub(super) fn members(&self, cluster: &ClusterId) -> impl Iterator<Item = (&PodName, &SimulatedMember)> {
        let now = Instant::now();
        let machines = self.machines.values().filter(move |machine| machine.on_network(now));
        machines.flat_map(|machine| machine.runtime.processes()).filter_map(move |(kept, process)| {
            let SimulatedProgram::Etcd(member) = &process.program else { return None };
            (member.cluster == *cluster).then_some((&kept.pod, member))
        })
    }

    /// The ids of running members that other machines can reach, and that the store has not removed.
    fn working_members(&self, cluster: &ClusterId) -> BTreeSet<MemberId> {
        let Some(store) = self.stores.get(cluster) else { return BTreeSet::new() };
        let ids = self.members(cluster).filter_map(|(_, member)| member.id);
        ids.filter(|id| !store.has_removed(*id)).collect()
    }

    /// Returns whether more than half of the voters of a cluster run.
    pub(super) fn has_quorum(&self, cluster: &ClusterId) -> bool {
        self.stores.get(cluster).is_some_and(|store| store.has_majority(&self.working_members(cluster)))
    }

    /// Returns whether a member belongs to its store, and the store works.
    pub(super) fn is_member_well(&self, member: &SimulatedMember) -> bool {
        let store = self.stores.get(&member.cluster);
        let is_listed = store.zip(member.id).is_some_and(|(store, id)| store.list().contains_key(&id));
        is_listed && self.has_quorum(&member.cluster)
    }

    /// Lets the members of all stores elect leaders and catch up. Processes of removed members end.
    pub(super) fn advance_stores(&mut self) {
        for id in self.stores.keys().cloned().collect::<Vec<_>>() {
            let up = self.working_members(&id);
            let learns =
                self.stores.get(&id).is_some_and(|store| store.list().values().any(|listed| listed.is_learner));
            let lags = learns && !self.weather.calm && self.random.one_in(3);
            if let Some(store) = self.stores.get_mut(&id) {
                store.tick(&up, if lags { &up } else { const { &BTreeSet::new() } });
            }
            self.use_space(&id);
        }
        let removed: Vec<(HypervisorName, String)> = self.processes_of_removed_members();
        for (machine, id) in removed {
            if let Some(found) = self.machines.get_mut(&machine) {
                found.runtime.end(|kept| kept.state.id == id, 0);
            }
        }
    }

    fn processes_of_removed_members(&self) -> Vec<(HypervisorName, String)> {
        let of_machine = |(name, machine): (&HypervisorName, &super::machine::SimulatedHypervisor)| {
            let processes = machine.runtime.processes().filter_map(|(kept, process)| {
                let SimulatedProgram::Etcd(member) = &process.program else { return None };
                let store = self.stores.get(&member.cluster)?;
                store.has_removed(member.id?).then(|| (name.clone(), kept.state.id.clone()))
            });
            processes.collect::<Vec<_>>()
        };
        self.machines.iter().flat_map(of_machine).collect()
    }

    /// What the members that were reached report.
    pub(super) fn observe_store(
        &self,
        cluster: &ClusterId,
        asked: Vec<ComponentName>,
        reached: &BTreeMap<ComponentName, MemberId>,
    ) -> StoreObservation {
        let Some(store) = self.stores.get(cluster) else { return StoreObservation::default() };
        let mut seen = store.observe(asked, reached);
        self.observe_former_members(cluster, &mut seen, reached);
        let works = self.has_quorum(cluster) && store.leader().is_some();
        seen.list = (works && !reached.is_empty()).then(|| store.list().clone());
        seen
    }

    /// Executes an order as the executor of passes and etcd do together. An order that has taken effect changes nothing.
    pub(super) fn execute_order(&mut self, cluster: &ClusterId, order: &StoreOrder) -> Result<(), String> {
        let up = self.working_members(cluster);
        let is_placed = self.is_placed(cluster, order);
        // A member that stopped responding since the pass observed it is not the fault of the pass.
        let seen = self.pass.seen.stores.get(cluster).into_iter().flat_map(|seen| seen.members.values());
        let serving = seen.filter_map(|report| report.known()).filter(|report| report.leader.is_some());
        let responding: BTreeSet<MemberId> = serving.map(|report| report.id).collect();
        let order = &self.alter_order(cluster, order);
        let Some(store) = self.stores.get_mut(cluster) else { return Err("no etcd".to_owned()) };
        if has_taken_effect(store, order) {
            return Ok(());
        }
        // etcd drops a proposal that waits too long, so an addition does not arrive after its component is gone.
        if !is_placed {
            return Err("etcdserver: request timed out".to_owned());
        }
        let broken = store.broken_space_rule(order);
        let had_majority = store.has_majority(&up);
        match store.execute(order, &up) {
            Err(StoreRefusal::Compacted) => return Ok(()),
            done => done.map_err(|refusal| refusal.to_string())?,
        }
        let learners = store.list().values().filter(|listed| listed.is_learner).count();
        if had_majority && !store.has_majority(&responding.union(&up).copied().collect()) {
            self.report_violation("no order of ours ends the majority of a store", order.to_string());
        }
        if let Some(rule) = broken {
            self.report_violation(rule, order.to_string());
        }
        if learners > 1 {
            self.report_violation("a store has one change of its members at a time", order.to_string());
        }
        self.trace_line(format!("etcd of {cluster}: {order}"));
        Ok(())
    }

    fn is_placed(&self, cluster: &ClusterId, order: &StoreOrder) -> bool {
        let StoreOrder::AddLearner { component, .. } = order else { return true };
        let pod = PodName { cluster: cluster.clone(), component: component.clone() };
        self.saved.components.get(&pod).is_some_and(|component| !component.is_leaving())
    }
}

fn has_taken_effect(store: &StoreModel, order: &StoreOrder) -> bool {
    match order {
        StoreOrder::AddLearner { peer_urls, .. } => {
            store.list().values().any(|listed| listed.peer_urls.iter().eq(peer_urls))
        }
        StoreOrder::Promote { id, .. } => store.list().get(id).is_some_and(|listed| !listed.is_learner),
        StoreOrder::MoveLeader { from, .. } => store.leader() != Some(*from),
        StoreOrder::Remove { id, .. } => !store.list().contains_key(id),
        StoreOrder::Disarm { id, alarm } => !store.alarms().any(|raised| raised == (*id, *alarm)),
        StoreOrder::Compact { .. } => false,
        StoreOrder::Defragment { id, size, .. } => store.database_size(*id) < *size,
        StoreOrder::Restore { .. } => true,
    }
}
