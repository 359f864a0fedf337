//! Planted bugs, which the simulation must find.

use std::collections::BTreeMap;

use keelway_api::{
    Documents,
    cluster::{EtcdStatus, RemovalReason},
    machine::{ContainerPhase, MachineConfig, MachineState, ObservedValue, Pod, ServerAdmin, Start},
    name::{HypervisorName, PodName},
    role::Role,
};
use keelway_machine::{
    action::{Action, PodAction},
    converge::converge,
};
use keelway_planner::refusal;

use super::{
    rollout_bugs::{RolloutBug, forget_names},
    rollouts::has_rollouts,
    rules::role_of,
    sleep_bugs::SleepBug,
    sleeps::has_sleeps,
    state::SimulationState,
};

/// A bug in the code around the real parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Documents are saved after the effects that depend on them.
    SavesAfterwards,
    /// A failed save is treated as a success.
    IgnoresFailedSaves,
    /// The creation of an etcd cluster is forgotten and planned again.
    BearsTwice,
    /// A component gets a port that another component has.
    ForgetsAPort,
    /// A component that runs as planned is restarted when it is observed again.
    RestartsTheHealthy,
    /// If a machine does not respond, its actual state is treated as observed.
    ActsOnTheUnreachable,
    /// The owner of a machine is ignored.
    IgnoresTheOwner,
    /// A machine is changed before its owner is recorded.
    ForgetsTheOwner,
    /// A key is in a command line.
    RevealsAKey,
    /// The data of a component in the documents is removed.
    RemovesData,
    /// etcd members are stopped without regard to the other members.
    StopsMembers,
    /// A pod that does not belong to Keelway is stopped.
    StopsStrangers,
    /// All replicas of a role are replaced at the same time.
    ReplacesAllAtOnce,
    /// An etcd member starts even if its data is missing.
    StartsOnAnyData,
    /// A machine never records which config it has applied.
    ForgetsToRecord,
    /// A file is not written, although the write is reported as a success.
    LosesAFile,
    /// A component is recorded on another machine.
    MovesAComponent,
    /// A Secret is not saved.
    DropsASecret,
    /// API servers that still get connections are treated as drained.
    TakesServersForDrained,
    /// Certificates expire at the moment of minting.
    MintsForNoTime,
    /// The reports of machines that they have seen newer documents are ignored.
    ActsOnStaleDocuments,
    /// If one machine has seen newer documents, all machines are treated as if they had.
    StaleMachineStopsAll,
    /// If an authority of one cluster has expired, no documents are loaded.
    EndedAuthorityStopsAll,
    /// Agents do nothing.
    AgentsSleep,
    /// A component that cannot be built is left out of the config of its machine.
    LeavesOutWhatCannotBeBuilt,
    /// The data of a member is removed because no config contains the member.
    RemovesDataWithoutAnOrder,
    /// A component that is to be removed is forgotten before its machine has been observed without it.
    ForgetsWhatMayRun,
    /// A container whose certificate has expired is treated as not live.
    ChecksDates,
    /// The change of a store's members is forgotten before it has ended.
    ForgetsTheChange,
    /// The removal of the data of a member is ordered while the store has the member.
    CleansAMember,
    /// Two members of a store are defragmented at once.
    DefragmentsTwo,
    /// The leader is defragmented while it leads.
    DefragmentsTheLeader,
    /// The alarm of a full member is disarmed.
    DisarmsWithoutSpace,
    /// The alarm of a corrupt member is disarmed while the store has the member.
    DisarmsACorruptMember,
    /// The earlier members of a store continue while it is restored, and are treated as stopped.
    KeepsEarlierMembers,
    /// A bug in a rollout.
    InRollout(RolloutBug),
    /// A bug in the sleep of a cluster.
    InSleep(SleepBug),
}

impl Bug {
    /// Every planted bug.
    pub const ALL: [Self; 54] = [
        Self::SavesAfterwards,
        Self::IgnoresFailedSaves,
        Self::BearsTwice,
        Self::ForgetsAPort,
        Self::RestartsTheHealthy,
        Self::ActsOnTheUnreachable,
        Self::IgnoresTheOwner,
        Self::ForgetsTheOwner,
        Self::RevealsAKey,
        Self::RemovesData,
        Self::StopsMembers,
        Self::StopsStrangers,
        Self::ReplacesAllAtOnce,
        Self::StartsOnAnyData,
        Self::ForgetsToRecord,
        Self::LosesAFile,
        Self::MovesAComponent,
        Self::DropsASecret,
        Self::TakesServersForDrained,
        Self::MintsForNoTime,
        Self::ActsOnStaleDocuments,
        Self::StaleMachineStopsAll,
        Self::EndedAuthorityStopsAll,
        Self::AgentsSleep,
        Self::LeavesOutWhatCannotBeBuilt,
        Self::RemovesDataWithoutAnOrder,
        Self::ForgetsWhatMayRun,
        Self::ChecksDates,
        Self::ForgetsTheChange,
        Self::CleansAMember,
        Self::DefragmentsTwo,
        Self::DefragmentsTheLeader,
        Self::DisarmsWithoutSpace,
        Self::DisarmsACorruptMember,
        Self::KeepsEarlierMembers,
        Self::InRollout(RolloutBug::UpgradesControllersFirst),
        Self::InRollout(RolloutBug::UpgradesServersFirst),
        Self::InRollout(RolloutBug::SkipsAMinorVersion),
        Self::InRollout(RolloutBug::DowngradesAMember),
        Self::InRollout(RolloutBug::ReplacesTwoServers),
        Self::InRollout(RolloutBug::ActivatesBeforeAllTrust),
        Self::InRollout(RolloutBug::RetiresBeforeTheIssue),
        Self::InRollout(RolloutBug::SignsTokensEarly),
        Self::InRollout(RolloutBug::RetiresBeforeTheRewrite),
        Self::InRollout(RolloutBug::ForgetsAnUpgrade),
        Self::InRollout(RolloutBug::ForgetsARotation),
        Self::InRollout(RolloutBug::SkipsTheSilent),
        Self::InRollout(RolloutBug::SkipsAbsentWorkers),
        Self::InRollout(RolloutBug::NamesNobody),
        Self::InRollout(RolloutBug::KeepsTrustAfterwards),
        Self::InSleep(SleepBug::DropsTheData),
        Self::InSleep(SleepBug::StartsWhatSleeps),
        Self::InSleep(SleepBug::ForgetsAWake),
        Self::InSleep(SleepBug::LosesTheTime),
    ];

    /// Returns the rule that has to find the bug. `None`: any rule may.
    #[must_use]
    pub fn rule(self) -> Option<&'static str> {
        if let Self::InRollout(bug) = self {
            return Some(bug.rule());
        }
        if let Self::InSleep(bug) = self { Some(bug.rule()) } else { None }
    }

    /// Returns whether people do in the run of this seed what the bug is about.
    #[must_use]
    pub fn can_occur(self, seed: u64) -> bool {
        let (is_in_rollout, is_in_sleep) = (matches!(self, Self::InRollout(_)), matches!(self, Self::InSleep(_)));
        (!is_in_rollout || has_rollouts(seed)) && (!is_in_sleep || has_sleeps(seed))
    }
}

impl SimulationState {
    /// Returns the observation of a machine that the pass gets.
    pub(super) fn alter_observation(
        &mut self,
        machine: &HypervisorName,
        seen: ObservedValue<MachineState>,
    ) -> ObservedValue<MachineState> {
        match (self.bug, seen) {
            (Some(Bug::ActsOnTheUnreachable), unreachable @ ObservedValue::Unreachable { .. }) => {
                self.machines.get(machine).map_or(unreachable, |found| ObservedValue::Known(found.state()))
            }
            (Some(Bug::IgnoresTheOwner), ObservedValue::Known(state)) => {
                let of_others = self.machines.get(machine).is_some_and(|found| found.strangers.owner.is_some());
                ObservedValue::Known(MachineState { owner: state.owner.filter(|_| !of_others), ..state })
            }
            (Some(Bug::RestartsTheHealthy), ObservedValue::Known(mut state)) => {
                for sandbox in &mut state.sandboxes {
                    sandbox.digest.clear();
                }
                ObservedValue::Known(state)
            }
            (Some(Bug::ActsOnStaleDocuments), ObservedValue::Known(state)) if self.pass.stale => {
                ObservedValue::Known(MachineState { applied: None, ..state })
            }
            (Some(Bug::StaleMachineStopsAll), ObservedValue::Known(mut state)) if self.has_stale_machine() => {
                if let Some(applied) = &mut state.applied {
                    applied.term += 1;
                }
                ObservedValue::Known(state)
            }
            (Some(Bug::TakesServersForDrained), ObservedValue::Known(mut state)) => {
                for server in state.servers.values_mut().flat_map(BTreeMap::values_mut) {
                    server.admin = ServerAdmin::Drains;
                }
                ObservedValue::Known(state)
            }
            (Some(Bug::KeepsEarlierMembers), ObservedValue::Known(mut state)) => {
                state.sandboxes.retain(|sandbox| !self.is_earlier_member(&sandbox.pod));
                ObservedValue::Known(state)
            }
            (_, seen) => seen,
        }
    }

    /// Returns whether a machine has applied a later config than the documents record.
    fn has_stale_machine(&self) -> bool {
        let mut all = self.machines.iter();
        all.any(|(name, machine)| {
            let document = self.pass.loaded.hypervisors.get(name);
            let refused = document.and_then(|document| refusal(document, &machine.state()));
            refused.is_some_and(|refused| refused.is_stale())
        })
    }

    /// Returns the documents to save in place of the planned ones.
    pub(super) fn alter_documents(&self, mut documents: Documents) -> Documents {
        match self.bug {
            Some(Bug::MovesAComponent) => {
                let machines: Vec<HypervisorName> = documents.hypervisors.keys().cloned().collect();
                if let Some(component) = documents.components.values_mut().next()
                    && let Some(other) = machines.into_iter().find(|name| *name != component.spec.hypervisor)
                {
                    component.spec.hypervisor = other;
                }
            }
            Some(Bug::RemovesDataWithoutAnOrder) => {
                let clusters =
                    documents.clusters.values_mut().filter_map(|cluster| cluster.status.as_mut()?.etcd.as_mut());
                clusters.flat_map(|store| store.members.values_mut()).for_each(|member| member.removal = None);
            }
            Some(Bug::ForgetsTheChange) => stores(&mut documents).for_each(|store| store.change = None),
            Some(Bug::CleansAMember) => {
                let members = stores(&mut documents).filter_map(|store| store.members.values_mut().next());
                members.for_each(|member| member.removal = Some(RemovalReason::MemberRemoved));
            }
            Some(Bug::InRollout(RolloutBug::NamesNobody)) => forget_names(&mut documents),
            Some(Bug::ForgetsWhatMayRun) => {
                let stopping = documents.components.iter().find(|(_, component)| component.is_stopping());
                if let Some(pod) = stopping.map(|(pod, _)| pod.clone()) {
                    documents.components.remove(&pod);
                }
            }
            Some(Bug::DropsASecret) => {
                if let Some(last) = documents.secrets.keys().last().cloned() {
                    documents.secrets.remove(&last);
                }
            }
            _ => {}
        }
        documents
    }

    /// Returns the actions to execute in place of the planned ones.
    pub(super) fn alter_actions(
        &mut self,
        machine: &HypervisorName,
        config: &MachineConfig,
        mut actions: Vec<Action>,
    ) -> Vec<Action> {
        match self.bug {
            Some(Bug::ReplacesAllAtOnce) => {
                actions = self.decided_for(machine, config, actions, |pod| Pod { hold: false, ..pod });
            }
            Some(Bug::InRollout(RolloutBug::ReplacesTwoServers)) => {
                let servers = config.pods.keys().filter(|pod| role_of(pod) == Some(Role::KubeApiserver));
                if servers.count() > 0 {
                    let lets_go = |pod: Pod| {
                        let is_server = pod.containers.last().is_some_and(|main| main.name == "kube-apiserver");
                        Pod { hold: pod.hold && !is_server, ..pod }
                    };
                    actions = self.decided_for(machine, config, actions, lets_go);
                }
            }
            Some(Bug::InSleep(SleepBug::DropsTheData)) => self.drop_sleeping_data(config, &mut actions),
            Some(Bug::InSleep(SleepBug::StartsWhatSleeps)) => {
                actions = self.start_what_sleeps(machine, config, actions);
            }
            Some(Bug::StartsOnAnyData) => {
                actions = self.decided_for(machine, config, actions, |pod| Pod { start: Start::Always, ..pod });
            }
            Some(Bug::KeepsEarlierMembers) if config.pods.values().any(|pod| pod.start == Start::Stopped) => {
                let continues = |pod: Pod| {
                    let is_member = pod.containers.last().is_some_and(|main| main.name == "etcd");
                    let start = if is_member && pod.start == Start::Stopped { Start::OnUsedData } else { pod.start };
                    Pod { start, ..pod }
                };
                actions = self.decided_for(machine, config, actions, continues);
            }
            Some(Bug::LeavesOutWhatCannotBeBuilt) => {
                actions =
                    self.decided_without(machine, config, actions, |pod| pod.component.as_str().starts_with("kube-"));
            }
            Some(Bug::ForgetsToRecord) => actions.retain(|action| !matches!(action, Action::RecordApplied(_))),
            Some(Bug::ForgetsTheOwner) => actions.retain(|action| !matches!(action, Action::WriteOwner(_))),
            Some(Bug::ForgetsAPort) => each_command(&mut actions, |word| {
                if word.starts_with("--secure-port=") { "--secure-port=20000".to_owned() } else { word }
            }),
            Some(Bug::RevealsAKey) => each_command(&mut actions, |word| {
                if word.starts_with("--secure-port=") { format!("{word} {}", super::rules::KEY) } else { word }
            }),
            Some(Bug::RemovesData) => {
                let pod = self.pod_on(machine);
                actions.extend(pod.map(|(pod, _)| Action::Pod(pod, PodAction::RemoveTree)));
            }
            Some(Bug::StopsMembers) => {
                let stop = self.pod_on(machine).map(|(pod, id)| {
                    Action::Pod(pod, PodAction::StopContainer { id, name: "etcd".to_owned(), grace_seconds: 1 })
                });
                actions.extend(stop);
            }
            Some(Bug::StopsStrangers) => {
                let stranger = self.machines.get(machine).and_then(|found| found.strangers.sandboxes.first().cloned());
                let pod = self.saved.components.keys().next().cloned();
                let stop = stranger.zip(pod).map(|(id, pod)| Action::Pod(pod, PodAction::StopSandbox { id }));
                actions.extend(stop);
            }
            _ => {}
        }
        actions
    }

    /// Returns the actions, with those for pods decided for a changed config.
    pub(super) fn decided_for(
        &self,
        machine: &HypervisorName,
        config: &MachineConfig,
        actions: Vec<Action>,
        change: impl Fn(Pod) -> Pod,
    ) -> Vec<Action> {
        let pods = config.pods.iter().map(|(name, pod)| (name.clone(), change(pod.clone())));
        self.decided_by(machine, MachineConfig { pods: pods.collect(), ..config.clone() }, actions)
    }

    /// Returns the actions, with those for pods decided for a config without some of its pods.
    fn decided_without(
        &self,
        machine: &HypervisorName,
        config: &MachineConfig,
        actions: Vec<Action>,
        is_left_out: impl Fn(&PodName) -> bool,
    ) -> Vec<Action> {
        let mut other = config.clone();
        other.pods.retain(|name, _| !is_left_out(name));
        self.decided_by(machine, other, actions)
    }

    fn decided_by(&self, machine: &HypervisorName, config: MachineConfig, actions: Vec<Action>) -> Vec<Action> {
        let Some(ObservedValue::Known(state)) = self.pass.seen.machines.get(machine).map(|seen| &**seen) else {
            return actions;
        };
        let other = MachineConfig { generation: config.generation + 1, ..config };
        let (first, last): (Vec<_>, Vec<_>) = actions
            .into_iter()
            .filter(|action| action.pod().is_none())
            .partition(|action| matches!(action, Action::WriteOwner(_)));
        let for_pods = converge(&other, state).unwrap_or_default().into_iter().filter(|action| action.pod().is_some());
        first.into_iter().chain(for_pods).chain(last).collect()
    }

    /// Returns a running etcd member on the machine, with the id of its container.
    fn pod_on(&self, machine: &HypervisorName) -> Option<(PodName, String)> {
        let found = self.machines.get(machine)?;
        let mut members = found.runtime.containers.iter().filter(|kept| {
            kept.state.phase == ContainerPhase::Running
                && kept.state.name == "etcd"
                && !self.is_deleted(&kept.pod.cluster)
        });
        members.next().map(|kept| (kept.pod.clone(), kept.state.id.clone()))
    }
}

fn each_command(actions: &mut [Action], change: impl Fn(String) -> String) {
    for action in actions {
        if let Action::Pod(_, PodAction::CreateContainer(new)) = action {
            new.container.command = std::mem::take(&mut new.container.command).into_iter().map(&change).collect();
        }
    }
}

fn stores(documents: &mut Documents) -> impl Iterator<Item = &mut EtcdStatus> {
    documents.clusters.values_mut().filter_map(|cluster| cluster.status.as_mut()?.etcd.as_mut())
}
