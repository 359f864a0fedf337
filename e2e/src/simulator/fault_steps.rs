//! Executes one step at a time, with or without a fault.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use keelway_api::name::HypervisorName;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    error::{SimulatedRefusal, no_answer},
    fault::{FaultPoint, InjectedFault},
    machine::{Reachability, SimulatedHypervisor},
    state::SimulationState,
};

/// The time limit for a response.
const GIVES_UP: Duration = Duration::from_secs(2);

/// A simulation. Clones share its state.
#[derive(Clone)]
pub(super) struct Sim {
    world: Arc<Mutex<SimulationState>>,
    /// Notified when the process of the driver has ended.
    pub(super) died: Arc<Notify>,
    /// Notified when something has changed on a machine.
    pub(super) changed: Arc<Notify>,
}

/// The target of a step.
#[derive(Debug, Clone, Copy)]
pub(super) enum StepTarget<'a> {
    Store,
    /// The runtime or the files of a machine.
    Machine(&'a HypervisorName),
    /// A process, through the network of its machine.
    Network(&'a HypervisorName),
}

/// What the driver observes of a step with a fault.
enum Noticed<T> {
    Answer(Result<T, SimulatedRefusal>),
    Nothing,
    /// The driver ends.
    Death,
}

impl Sim {
    pub(super) fn new(world: SimulationState) -> Self {
        Self { world: Arc::new(Mutex::new(world)), died: Arc::default(), changed: Arc::default() }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, SimulationState> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a step, perhaps with a fault. `doing` itself takes no simulated time.
    pub(super) async fn step<T: Send + 'static>(
        &self,
        step: FaultPoint,
        of: StepTarget<'_>,
        doing: impl Fn(&mut SimulationState) -> Result<T, SimulatedRefusal> + Send + 'static,
    ) -> Result<T, SimulatedRefusal> {
        let (fault, takes, at) = {
            let mut world = self.world();
            let fault = if world.dead { None } else { world.fault_at(step) };
            (fault, world.duration_of(step), world.place_of(of))
        };
        if fault == Some(InjectedFault::DiesBefore) {
            self.world().record_fault((InjectedFault::DiesBefore, step), at.as_str());
            return self.crash_driver().await;
        }
        sleep(takes).await;
        if self.world().dead {
            return std::future::pending().await;
        }
        if !self.world().reaches(of) {
            sleep(GIVES_UP).await;
            return Err(no_answer());
        }
        match fault {
            None => doing(&mut self.world()),
            Some(fault) => match self.inject_fault((fault, step), &at, doing) {
                Noticed::Answer(answer) => answer,
                Noticed::Nothing => {
                    sleep(GIVES_UP).await;
                    Err(no_answer())
                }
                Noticed::Death => self.crash_driver().await,
            },
        }
    }

    /// Executes a step with a fault, and returns what the driver observes.
    fn inject_fault<T: Send + 'static>(
        &self,
        cell: (InjectedFault, FaultPoint),
        at: &HypervisorName,
        doing: impl Fn(&mut SimulationState) -> Result<T, SimulatedRefusal> + Send + 'static,
    ) -> Noticed<T> {
        let (fault, step) = cell;
        match fault {
            InjectedFault::RequestLost => {
                self.world().record_fault(cell, at.as_str());
                Noticed::Nothing
            }
            InjectedFault::ReplyLost => {
                let mut world = self.world();
                world.record_fault(cell, at.as_str());
                let _ = doing(&mut world);
                Noticed::Nothing
            }
            InjectedFault::Repeated => Noticed::Answer(self.repeat(cell, at, doing)),
            InjectedFault::Late => {
                self.world().record_fault(cell, at.as_str());
                self.run_late(step, at, doing);
                Noticed::Nothing
            }
            InjectedFault::Unreachable
            | InjectedFault::Hung
            | InjectedFault::DiskFull
            | InjectedFault::Rebooted
            | InjectedFault::Emptied
            | InjectedFault::Crashed
            | InjectedFault::Tampered
            | InjectedFault::ClockJumped
            | InjectedFault::Edited
            | InjectedFault::Stale
            | InjectedFault::Removed
            | InjectedFault::Restored
            | InjectedFault::Doubled => self.inject_beside(cell, at, doing),
            InjectedFault::DiesAfter => {
                let mut world = self.world();
                world.record_fault(cell, at.as_str());
                let at_once =
                    of_files(step) || matches!(step, FaultPoint::Load | FaultPoint::Save) || !world.random.one_in(3);
                if at_once {
                    let _ = doing(&mut world);
                } else {
                    drop(world);
                    self.run_late(step, at, doing);
                }
                Noticed::Death
            }
            InjectedFault::CutOff => {
                let mut world = self.world();
                world.record_fault(cell, at.as_str());
                world.cuts_save = true;
                let _ = doing(&mut world);
                // A save that is refused has no changes to cut off. The next save is a different one.
                world.cuts_save = false;
                if world.random.one_in(2) { Noticed::Nothing } else { Noticed::Death }
            }
            InjectedFault::DiesBefore => Noticed::Death,
        }
    }

    /// Injects a fault into the machine just before or just after the step.
    fn inject_beside<T>(
        &self,
        cell: (InjectedFault, FaultPoint),
        at: &HypervisorName,
        doing: impl Fn(&mut SimulationState) -> Result<T, SimulatedRefusal>,
    ) -> Noticed<T> {
        let (fault, step) = cell;
        let mut world = self.world();
        let before = world.random.one_in(2).then(|| world.inject(fault, at)).flatten();
        if let Some(struck) = &before {
            world.record_fault(cell, struck.as_str());
            let down = !world.machines.get(at).is_some_and(|machine| machine.answers(Instant::now()));
            if down && !matches!(step, FaultPoint::Load | FaultPoint::Save) {
                return Noticed::Nothing;
            }
        }
        let done = doing(&mut world);
        if before.is_none()
            && let Some(struck) = world.inject(fault, at)
        {
            world.record_fault(cell, struck.as_str());
        }
        self.changed.notify_one();
        Noticed::Answer(done)
    }

    /// Executes a step twice. The second execution must not change anything.
    fn repeat<T>(
        &self,
        cell: (InjectedFault, FaultPoint),
        at: &HypervisorName,
        doing: impl Fn(&mut SimulationState) -> Result<T, SimulatedRefusal>,
    ) -> Result<T, SimulatedRefusal> {
        let mut world = self.world();
        world.record_fault(cell, at.as_str());
        let first = doing(&mut world);
        let after_first = world.machines.get(at).map(SimulatedHypervisor::state);
        let second = doing(&mut world);
        if after_first != world.machines.get(at).map(SimulatedHypervisor::state) {
            world.report_violation("every effect can be repeated", format!("{at}: {:?}", cell.1));
        }
        if world.random.one_in(2) { first } else { second }
    }

    /// Executes a step after a delay. A runtime executes late requests beside others. A file system that hangs blocks all requests of the machine.
    fn run_late<T: Send + 'static>(
        &self,
        step: FaultPoint,
        at: &HypervisorName,
        doing: impl Fn(&mut SimulationState) -> Result<T, SimulatedRefusal> + Send + 'static,
    ) {
        let mut world = self.world();
        let after = world.random.millis(100, 6_000);
        if of_files(step)
            && !world.losses.lost.contains(at)
            && let Some(machine) = world.machines.get_mut(at)
        {
            machine.reach = Reachability::Hangs { until: Instant::now() + after };
        }
        drop(world);
        let (sim, at) = (self.clone(), at.clone());
        tokio::spawn(async move {
            sleep(after).await;
            let mut world = sim.world();
            // A sandbox that the runtime creates after the machine has left the installation belongs to none: no pass observes that machine.
            let is_left = world.machines.get(&at).is_some_and(|machine| machine.disk.owner.is_none());
            let is_nobodys = is_left && step == FaultPoint::CreateSandbox;
            if !world.weather.calm && !is_nobodys {
                world.trace_line(format!("{step:?} is done late"));
                let _ = doing(&mut world);
                sim.changed.notify_one();
            }
        });
    }

    /// Ends the process of the driver, with everything that it was doing.
    async fn crash_driver<T>(&self) -> T {
        self.world().dead = true;
        self.died.notify_one();
        std::future::pending().await
    }
}

impl SimulationState {
    /// Returns the duration of a step without a fault.
    fn duration_of(&mut self, step: FaultPoint) -> Duration {
        match step {
            FaultPoint::Load | FaultPoint::Save => self.random.millis(0, 3),
            FaultPoint::Observe | FaultPoint::AskHealth | FaultPoint::AskBindings => self.random.millis(1, 15),
            FaultPoint::EnsureImage => self.random.millis(20, 1_500),
            FaultPoint::StopContainer => self.random.millis(10, 900),
            FaultPoint::Bind
            | FaultPoint::Order
            | FaultPoint::WriteOwner
            | FaultPoint::MakeDirectories
            | FaultPoint::MarkData
            | FaultPoint::CopyData
            | FaultPoint::ChangeServer
            | FaultPoint::WriteFile
            | FaultPoint::RemovePath
            | FaultPoint::RemoveContainer
            | FaultPoint::StopSandbox
            | FaultPoint::RemoveSandbox
            | FaultPoint::CreateSandbox
            | FaultPoint::CreateContainer
            | FaultPoint::StartContainer
            | FaultPoint::RemoveTree
            | FaultPoint::ForgetCluster
            | FaultPoint::RecordApplied
            | FaultPoint::Leave
            | FaultPoint::Adopt => self.random.millis(1, 60),
        }
    }

    /// Returns the machine that a fault during the step affects.
    fn place_of(&mut self, of: StepTarget<'_>) -> HypervisorName {
        match of {
            StepTarget::Machine(name) | StepTarget::Network(name) => name.clone(),
            StepTarget::Store => self.random.pick(self.machines.keys().cloned().collect::<Vec<_>>()).unwrap(),
        }
    }

    fn reaches(&self, of: StepTarget<'_>) -> bool {
        let now = Instant::now();
        match of {
            StepTarget::Store => true,
            StepTarget::Machine(name) => self.machines.get(name).is_some_and(|machine| machine.answers(now)),
            StepTarget::Network(name) => self.machines.get(name).is_some_and(|machine| machine.on_network(now)),
        }
    }
}

fn of_files(step: FaultPoint) -> bool {
    matches!(
        step,
        FaultPoint::WriteOwner
            | FaultPoint::MakeDirectories
            | FaultPoint::MarkData
            | FaultPoint::CopyData
            | FaultPoint::WriteFile
            | FaultPoint::RemovePath
            | FaultPoint::RemoveTree
            | FaultPoint::ForgetCluster
            | FaultPoint::RecordApplied
            | FaultPoint::Leave
            | FaultPoint::Adopt
    )
}
