//! Simulated databases of etcd members: they fill up, raise alarms, and are compacted and defragmented.

use std::collections::BTreeMap;

use keelway_api::{
    machine::Figures,
    name::{ClusterId, HypervisorName, PodName},
    store_observation::{MemberAlarm, MemberId},
};
use keelway_planner::StoreOrder;

use super::{bug::Bug, program::SimulatedProgram, random::Random, runtime::SimulatedProcess, state::SimulationState};

/// What clients write, as a generator of its own, so that the rest of a run does not depend on it.
pub(super) struct SimulatedClients {
    random: Random,
    /// Whether clients of this run fill databases.
    fills: bool,
}

impl SimulatedClients {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(32) ^ 0x5eed);
        let fills = random.one_in(3);
        Self { random, fills }
    }
}

impl SimulationState {
    /// Lets clients of a store write for a second. kube-apiserver compacts now and then. Data never fills more than half of the quota, so that a
    /// store without space can always be repaired. Rarely, etcd finds out that the data of one member differs.
    pub(super) fn use_space(&mut self, id: &ClusterId) {
        let cluster = self.saved.clusters.values().find(|cluster| cluster.id() == Some(id));
        let serves = cluster.is_some_and(|cluster| cluster.is_initialized() && cluster.is_awake());
        if self.weather.calm || !self.clients.fills || !serves {
            return;
        }
        let (clients, Some(store)) = (&mut self.clients.random, self.stores.get_mut(id)) else { return };
        if store.data_percent() < 50 && clients.one_in(8) {
            store.write(clients.between(0, 2), clients.between(20, 70));
        }
        if clients.one_in(5) {
            store.compact_as_clients_do();
        }
        let voters: Vec<MemberId> =
            store.list().iter().filter(|(_, listed)| !listed.is_learner).map(|(id, _)| *id).collect();
        // With a member on a lost machine and a corrupt one, a person has to decide.
        let is_whole = voters.len() == store.list().len() && !self.losses.happen;
        let is_calm = voters.len() > 2 && is_whole && store.alarms().next().is_none();
        if is_calm
            && clients.one_in(60)
            && let Some(member) = clients.pick(voters)
        {
            store.corrupt(member);
            self.trace_line(format!("etcd of {id}: the data of {member} differs"));
        }
    }

    /// Returns whether the store of a member accepts requests.
    pub(super) fn serves_requests(&self, process: &SimulatedProcess) -> bool {
        let SimulatedProgram::Etcd(member) = &process.program else { return true };
        let store = self.stores.get(&member.cluster);
        store.is_none_or(|store| !store.alarms().any(|(_, alarm)| alarm == MemberAlarm::Corrupt))
    }

    /// What agents report of the databases on a machine.
    pub(super) fn figures_on(&self, machine: &HypervisorName) -> BTreeMap<PodName, Figures> {
        let processes = self.machines.get(machine).into_iter().flat_map(|found| found.runtime.processes());
        let figures = processes.filter_map(|(kept, process)| {
            let SimulatedProgram::Etcd(member) = &process.program else { return None };
            let (store, id) = (self.stores.get(&member.cluster)?, member.id?);
            let no_space = store.alarms().any(|(_, alarm)| alarm == MemberAlarm::NoSpace);
            let database_bytes = Some(store.database_size(id));
            Some((kept.pod.clone(), Figures { database_bytes, no_space, ..Figures::default() }))
        });
        figures.collect()
    }

    /// Returns the order that a planted bug sends in place of the planned one.
    pub(super) fn alter_order(&mut self, cluster: &ClusterId, order: &StoreOrder) -> StoreOrder {
        let Some(store) = self.stores.get_mut(cluster) else { return order.clone() };
        let voters = store.list().iter().filter(|(_, listed)| !listed.is_learner).map(|(id, _)| *id);
        let voters: Vec<MemberId> = voters.collect();
        match (self.bug, order) {
            (Some(Bug::DefragmentsTwo), StoreOrder::Defragment { component, id, size }) => {
                if let Some(other) = voters.iter().find(|other| *other != id) {
                    let other = StoreOrder::Defragment { component: component.clone(), id: *other, size: *size };
                    let _ = store.execute(&other, &voters.iter().copied().collect());
                }
                order.clone()
            }
            (Some(Bug::DefragmentsTheLeader), StoreOrder::Defragment { component, size, .. }) => {
                let leader = store.leader();
                leader.map_or_else(
                    || order.clone(),
                    |id| StoreOrder::Defragment { component: component.clone(), id, size: *size },
                )
            }
            (Some(Bug::DisarmsWithoutSpace), StoreOrder::Compact { .. } | StoreOrder::Defragment { .. }) => {
                let raised = store.alarms().find(|(id, alarm)| *alarm == MemberAlarm::NoSpace && store.is_full(*id));
                raised.map_or_else(|| order.clone(), |(id, alarm)| StoreOrder::Disarm { id, alarm })
            }
            (Some(Bug::DisarmsACorruptMember), StoreOrder::Remove { .. }) => {
                let raised = store.alarms().find(|(_, alarm)| *alarm == MemberAlarm::Corrupt);
                raised.map_or_else(|| order.clone(), |(id, alarm)| StoreOrder::Disarm { id, alarm })
            }
            _ => order.clone(),
        }
    }

    /// Checks that no alarm is left in a settled fleet.
    pub(super) fn check_alarms(&mut self) {
        let raised = self.saved.clusters.values().filter_map(|cluster| {
            let id = cluster.id().filter(|_| cluster.is_awake())?;
            let (member, alarm) = self.stores.get(id)?.alarms().next()?;
            Some(format!("{id}: {alarm} of {member}"))
        });
        if let Some(what) = raised.collect::<Vec<_>>().into_iter().next() {
            self.report_violation("a settled store has no alarm", what);
        }
    }
}
