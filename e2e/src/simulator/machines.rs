//! Simulated machines as the pass reaches them: what is there is told, what was decided is executed by the real executor.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use keelway_api::{
    Hypervisor,
    machine::{MachineState, Seen},
    name::{HypervisorName, InstallationId, PodName},
};
use keelway_hypervisor_agent::{
    Connection,
    action::{Action, PodAction},
    client::Handover,
    execute::{Hands, Made, execute},
    report::Effect,
};
use keelway_reconciler::{Applying, Machines, Run};

use super::{
    bug::Bug,
    error::Refused,
    fault::Step,
    rules::shows_a_key,
    sim::{Of, Sim},
    world::World,
};

pub(super) struct SimulatedMachines(pub(super) Sim);

#[async_trait]
impl Machines for SimulatedMachines {
    async fn observe(&self, machine: &Hypervisor) -> Seen<MachineState> {
        let name = name_of(machine);
        let looked = name.clone();
        let seen = self.0.step(Step::Observe, Of::Machine(&name), move |world| {
            let found = world.machines.get(&looked).ok_or_else(|| Refused(format!("{looked}: no such machine")))?;
            Ok(found.state())
        });
        let seen = match seen.await {
            Ok(state) => Seen::Known(state),
            Err(refused) => Seen::unreachable(refused.to_string()),
        };
        let mut world = self.0.world();
        world.pass.seen.machines.insert(name.clone(), seen.clone());
        world.misjudged(&name, seen)
    }

    async fn apply(
        &self,
        machine: &Hypervisor,
        Handover { config, .. }: Handover,
        actions: Vec<Action>,
        run: &Run,
    ) -> Applying {
        let name = name_of(machine);
        let actions = {
            let mut world = self.0.world();
            let actions = world.misled(&name, &config, actions);
            world.check_actions(&name, &config, &actions);
            actions
        };
        let tell = |effect: Effect<'_>| {
            if let Effect::Begins(action) = effect {
                run.progress.effect(&name, &action.to_string());
            }
        };
        let hands = SimulatedHands { sim: &self.0, machine: &name };
        let report = execute(&hands, &actions, &run.stop, &tell).await;
        let failures: Vec<String> =
            report.failed.iter().map(|failure| format!("{}: {}", failure.action, failure.error)).collect();
        let mut world = self.0.world();
        for failure in &failures {
            world.tell(format!("{name} failed: {failure}"));
            if shows_a_key(failure) {
                world.breaks("no key is in an error", failure.clone());
            }
        }
        Applying { effects: report.done.len(), failures }
    }

    async fn adopt(&self, machine: &Hypervisor, installation: &InstallationId, _run: &Run) -> Applying {
        let name = name_of(machine);
        let (machine, owner) = (name.clone(), installation.clone());
        let done = self.0.step(Step::Adopt, Of::Machine(&name), move |world| {
            world.counts.effects += 1;
            let kept =
                world.pass.kept.hypervisors.get(&machine).and_then(|kept| kept.status.clone()).unwrap_or_default();
            if kept.installation.as_ref() != Some(&owner) {
                world
                    .breaks("documents are saved before any effect that relies on them", format!("{machine} is taken"));
            }
            let found = world.machines.get_mut(&machine).ok_or_else(|| Refused("no such machine".to_owned()))?;
            found.perform(&Action::WriteOwner(owner.clone()))?;
            found.strangers.owner = None;
            Ok(())
        });
        match done.await {
            Ok(()) => Applying { effects: 1, failures: Vec::new() },
            Err(refused) => Applying { effects: 0, failures: vec![refused.to_string()] },
        }
    }

    async fn dial(&self, _machine: &Hypervisor, _address: SocketAddr, _patience: Duration) -> io::Result<Connection> {
        Err(io::Error::other("simulated components are asked, not dialled"))
    }

    async fn changed(&self, _machines: &[&Hypervisor]) {
        self.0.changed.notified().await;
    }
}

/// Does actions on one machine of the simulation.
pub(super) struct SimulatedHands<'a> {
    pub(super) sim: &'a Sim,
    pub(super) machine: &'a HypervisorName,
}

impl Hands for SimulatedHands<'_> {
    type Error = Refused;

    async fn on_machine(&self, action: &Action) -> Result<(), Refused> {
        let (machine, done) = (self.machine.clone(), action.clone());
        let doing = move |world: &mut World| world.perform(&machine, &done, &Made::default()).map(|_| ());
        self.sim.step(Step::of(action), Of::Machine(self.machine), doing).await
    }

    async fn for_pod(&self, pod: &PodName, action: &PodAction, made: &mut Made) -> Result<(), Refused> {
        let (machine, done) = (self.machine.clone(), Action::Pod(pod.clone(), action.clone()));
        let before = Made { sandbox: made.sandbox.clone(), containers: made.containers.clone() };
        let spared = ends(action) && self.sim.world().is_spared(pod);
        let doing = move |world: &mut World| {
            let working = if ends_what_runs(&done) { world.working() } else { BTreeSet::new() };
            let made = world.perform(&machine, &done, &before);
            world.check_work_goes_on(&working, &done, spared);
            made
        };
        let Some(id) = self.sim.step(Step::of_pod(action), Of::Machine(self.machine), doing).await? else {
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

impl World {
    /// One action takes place on a machine; returns the id of what was made.
    pub(super) fn perform(
        &mut self,
        machine: &HypervisorName,
        action: &Action,
        made: &Made,
    ) -> Result<Option<String>, Refused> {
        self.counts.effects += 1;
        self.check_action(machine, action);
        let found = self.machines.get_mut(machine).ok_or_else(|| Refused("no such machine".to_owned()))?;
        match action {
            Action::Pod(_, PodAction::StartContainer { id, name }) => {
                let id = id.as_ref().or_else(|| made.containers.get(name));
                let id = id.ok_or_else(|| Refused("no container was made".to_owned()))?.clone();
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

/// Whether an action may end a process.
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
