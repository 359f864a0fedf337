//! Planted bugs in the sleep of clusters.

use keelway_api::{
    machine::{MachineConfig, Pod, Start},
    name::{HypervisorName, PodName},
};
use keelway_machine::action::{Action, PodAction};

use super::{bug::Bug, sleeps as rules, state::SimulationState};

/// A bug in the sleep of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepBug {
    /// The data of a cluster that sleeps is treated as not needed.
    DropsTheData,
    /// Components that sleep are started, as those that ended are.
    StartsWhatSleeps,
    /// The request to wake a cluster is forgotten.
    ForgetsAWake,
    /// The hours of a sleep are not counted, so certificates that expired meanwhile are not renewed.
    LosesTheTime,
}

impl SleepBug {
    pub(super) fn rule(self) -> &'static str {
        match self {
            Self::DropsTheData => rules::KEPT,
            Self::StartsWhatSleeps => rules::STOPPED,
            Self::ForgetsAWake => rules::REQUESTED,
            Self::LosesTheTime => rules::RENEWED,
        }
    }
}

impl SimulationState {
    /// Changes the saved documents as the planted bug of the run does.
    pub(super) fn plant_in_sleeps(&mut self) {
        if self.bug != Some(Bug::InSleep(SleepBug::ForgetsAWake)) {
            return;
        }
        for name in self.woken() {
            if let Some(cluster) = self.saved.clusters.get_mut(&name).filter(|cluster| cluster.is_sleeping()) {
                cluster.spec.asleep = true;
            }
        }
    }

    /// Adds the removal of all data that sleeps on a machine.
    pub(super) fn drop_sleeping_data(&self, config: &MachineConfig, actions: &mut Vec<Action>) {
        let asleep =
            self.sleeping_pods(config).filter(|(_, pod)| pod.containers.last().is_some_and(|main| main.name == "etcd"));
        actions.extend(asleep.map(|(name, _)| Action::Pod(name.clone(), PodAction::RemoveTree)));
    }

    /// Returns the actions, decided as if nothing slept.
    pub(super) fn start_what_sleeps(
        &self,
        machine: &HypervisorName,
        config: &MachineConfig,
        actions: Vec<Action>,
    ) -> Vec<Action> {
        if self.sleeping_pods(config).next().is_none() {
            return actions;
        }
        let starts = |pod: Pod| {
            if pod.start != Start::Stopped {
                return pod;
            }
            let is_member = pod.containers.last().is_some_and(|main| main.name == "etcd");
            Pod { start: if is_member { Start::OnUsedData } else { Start::Always }, ..pod }
        };
        self.decided_for(machine, config, actions, starts)
    }

    fn sleeping_pods<'a>(&'a self, config: &'a MachineConfig) -> impl Iterator<Item = (&'a PodName, &'a Pod)> {
        let stopped = config.pods.iter().filter(|(_, pod)| pod.start == Start::Stopped);
        stopped.filter(|(name, _)| self.sleeps_in_pass(&name.cluster))
    }
}
