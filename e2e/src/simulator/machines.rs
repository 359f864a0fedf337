//! Simulated machines, as the pass reaches them. The real executor executes the planned actions.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Hypervisor,
    machine::{MachineState, ObservedValue},
    name::{HypervisorName, InstallationId, PodName},
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::{
    action::{Action, PodAction},
    report::Effect,
};
use keelway_machine_io::execute::{ActionExecutor, CreatedIds, execute};
use keelway_reconciler::{ApplyOutcome, Machines, RunControl};

use super::{
    bug::Bug,
    error::SimulatedRefusal,
    fault::FaultPoint,
    fault_steps::{Sim, StepTarget},
    rules::shows_a_key,
    state::SimulationState,
};

pub(super) struct SimulatedMachines(pub(super) Sim);

#[async_trait]
impl Machines for SimulatedMachines {
    async fn observe(&self, machine: &Hypervisor) -> ObservedValue<MachineState> {
        let name = name_of(machine);
        let looked = name.clone();
        let seen = self.0.step(FaultPoint::Observe, StepTarget::Machine(&name), move |world| {
            let found =
                world.machines.get(&looked).ok_or_else(|| SimulatedRefusal(format!("{looked}: no such machine")))?;
            let mut state = found.state();
            state.figures = world.figures_on(&looked);
            Ok(state)
        });
        let seen = match seen.await {
            Ok(state) => ObservedValue::Known(state),
            Err(refused) => ObservedValue::unreachable(refused.to_string()),
        };
        let mut world = self.0.world();
        world.pass.seen.machines.insert(name.clone(), seen.clone());
        world.alter_observation(&name, seen)
    }

    async fn apply(
        &self,
        machine: &Hypervisor,
        ConfigDelivery { config, .. }: ConfigDelivery,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome {
        let name = name_of(machine);
        let actions = {
            let mut world = self.0.world();
            let actions = world.alter_actions(&name, &config, actions);
            world.check_actions(&name, &config, &actions);
            actions
        };
        let tell = |effect: Effect<'_>| {
            if let Effect::Begins(action) = effect {
                run.progress.effect(&name, &action.to_string());
            }
        };
        let executor = SimulatedExecutor { sim: &self.0, machine: &name };
        let report = execute(&executor, &actions, &run.stop, &tell).await;
        let failures: Vec<String> =
            report.failed.iter().map(|failure| format!("{}: {}", failure.action, failure.error)).collect();
        let mut world = self.0.world();
        for failure in &failures {
            world.trace_line(format!("{name} failed: {failure}"));
            if shows_a_key(failure) {
                world.report_violation("no key is in an error", failure.clone());
            }
        }
        ApplyOutcome { effects: report.done.len(), failures }
    }

    async fn adopt(&self, machine: &Hypervisor, installation: &InstallationId, _run: &RunControl) -> ApplyOutcome {
        let name = name_of(machine);
        let (machine, owner) = (name.clone(), installation.clone());
        let done = self.0.step(FaultPoint::Adopt, StepTarget::Machine(&name), move |world| {
            world.counts.effects += 1;
            let kept =
                world.pass.kept.hypervisors.get(&machine).and_then(|kept| kept.status.clone()).unwrap_or_default();
            if kept.installation.as_ref() != Some(&owner) {
                world.report_violation(
                    "documents are saved before any effect that relies on them",
                    format!("{machine} is taken"),
                );
            }
            let found =
                world.machines.get_mut(&machine).ok_or_else(|| SimulatedRefusal("no such machine".to_owned()))?;
            found.perform(&Action::WriteOwner(owner.clone()))?;
            found.strangers.owner = None;
            Ok(())
        });
        match done.await {
            Ok(()) => ApplyOutcome { effects: 1, failures: Vec::new() },
            Err(refused) => ApplyOutcome { effects: 0, failures: vec![refused.to_string()] },
        }
    }

    async fn dial(
        &self,
        _machine: &Hypervisor,
        _address: SocketAddr,
        _patience: Duration,
    ) -> io::Result<MachineConnection> {
        Err(io::Error::other("simulated components are asked, not dialled"))
    }

    async fn changed(&self, _machines: &[&Hypervisor]) {
        self.0.changed.notified().await;
    }
}

/// Executes actions on one machine of the simulation.
pub(super) struct SimulatedExecutor<'a> {
    pub(super) sim: &'a Sim,
    pub(super) machine: &'a HypervisorName,
}

impl ActionExecutor for SimulatedExecutor<'_> {
    type Error = SimulatedRefusal;

    async fn on_machine(&self, action: &Action) -> Result<(), SimulatedRefusal> {
        let (machine, done) = (self.machine.clone(), action.clone());
        let doing =
            move |world: &mut SimulationState| world.perform(&machine, &done, &CreatedIds::default()).map(|_| ());
        self.sim.step(FaultPoint::of(action), StepTarget::Machine(self.machine), doing).await
    }

    async fn for_pod(&self, pod: &PodName, action: &PodAction, made: &mut CreatedIds) -> Result<(), SimulatedRefusal> {
        let (machine, done) = (self.machine.clone(), Action::Pod(pod.clone(), action.clone()));
        let before = CreatedIds { sandbox: made.sandbox.clone(), containers: made.containers.clone() };
        let spared = ends(action) && self.sim.world().may_be_replaced(pod);
        if ends(action) {
            self.sim.world().check_takes_turns(pod, action);
        }
        let doing = move |world: &mut SimulationState| {
            let working = if ends_what_runs(&done) { world.working() } else { BTreeSet::new() };
            let made = world.perform(&machine, &done, &before);
            world.check_work_goes_on(&working, &done, spared);
            made
        };
        let Some(id) = self.sim.step(FaultPoint::of_pod(action), StepTarget::Machine(self.machine), doing).await?
        else {
            return Ok(());
        };
        if let PodAction::CreateContainer(new) = action {
            made.containers.insert(new.container.name.clone(), id);
        } else {
            made.sandbox = Some(id);
        }
        Ok(())
    }
}

impl SimulationState {
    /// Executes one action on a machine. Returns the id of a created object.
    pub(super) fn perform(
        &mut self,
        machine: &HypervisorName,
        action: &Action,
        made: &CreatedIds,
    ) -> Result<Option<String>, SimulatedRefusal> {
        self.counts.effects += 1;
        self.check_action(machine, action);
        let done = self.perform_on(machine, action, made);
        if matches!(action, Action::Pod(_, PodAction::StartContainer { .. } | PodAction::WriteFile { .. })) {
            self.check_rollouts();
        }
        done
    }

    fn perform_on(
        &mut self,
        machine: &HypervisorName,
        action: &Action,
        made: &CreatedIds,
    ) -> Result<Option<String>, SimulatedRefusal> {
        let found = self.machines.get_mut(machine).ok_or_else(|| SimulatedRefusal("no such machine".to_owned()))?;
        match action {
            Action::Pod(_, PodAction::StartContainer { id, name }) => {
                let id = id.as_ref().or_else(|| made.containers.get(name));
                let id = id.ok_or_else(|| SimulatedRefusal("no container was made".to_owned()))?.clone();
                found.runtime.startable(&id)?;
                self.start(machine, &id);
                Ok(None)
            }
            Action::Pod(_, PodAction::WriteFile { .. }) if self.bug == Some(Bug::LosesAFile) => Ok(None),
            Action::Pod(pod, action) => found.perform_for_pod(pod, action, made),
            Action::WriteOwner(_) | Action::ForgetCluster(_) | Action::RecordApplied(_) | Action::Leave => {
                found.perform(action).map(|()| None)
            }
        }
    }
}

fn ends_what_runs(action: &Action) -> bool {
    matches!(action, Action::Pod(_, action) if ends(action))
}

/// Returns whether an action may end a process.
fn ends(action: &PodAction) -> bool {
    matches!(
        action,
        PodAction::StopContainer { .. }
            | PodAction::RemoveContainer { .. }
            | PodAction::StopSandbox { .. }
            | PodAction::RemoveSandbox { .. }
    )
}

fn name_of(machine: &Hypervisor) -> HypervisorName {
    machine.metadata.name.as_ref().unwrap().parse().unwrap()
}
