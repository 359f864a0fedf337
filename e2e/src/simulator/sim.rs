//! One step at a time, and what may go wrong with each.

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
    error::{Refused, no_answer},
    fault::{Fault, Step},
    machine::{Machine, Reach},
    world::World,
};

/// How long an answer is waited for.
const GIVES_UP: Duration = Duration::from_secs(2);

/// A simulation. Clones are the same one.
#[derive(Clone)]
pub(super) struct Sim {
    world: Arc<Mutex<World>>,
    /// Told when the driver's process is gone.
    pub(super) died: Arc<Notify>,
    /// Told when something changed on a machine.
    pub(super) changed: Arc<Notify>,
}

/// Whom a step is asked of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of<'a> {
    /// The store of documents.
    Store,
    /// A machine's runtime or files.
    Machine(&'a HypervisorName),
    /// A process, through the machine's network.
    Network(&'a HypervisorName),
}

/// What the driver notices of a step that went wrong.
enum Noticed<T> {
    Answer(Result<T, Refused>),
    Nothing,
    /// Nothing, ever again.
    Death,
}

impl Sim {
    pub(super) fn new(world: World) -> Self {
        Self { world: Arc::new(Mutex::new(world)), died: Arc::default(), changed: Arc::default() }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a step, or lets it go wrong. What `doing` does takes no time.
    pub(super) async fn step<T: Send + 'static>(
        &self,
        step: Step,
        of: Of<'_>,
        doing: impl Fn(&mut World) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        let (fault, takes, at) = {
            let mut world = self.world();
            let fault = if world.dead { None } else { world.fault_at(step) };
            (fault, world.takes(step), world.place_of(of))
        };
        if fault == Some(Fault::DiesBefore) {
            self.world().took_place((Fault::DiesBefore, step), at.as_str());
            return self.die().await;
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
            Some(fault) => match self.go_wrong((fault, step), &at, doing) {
                Noticed::Answer(answer) => answer,
                Noticed::Nothing => {
                    sleep(GIVES_UP).await;
                    Err(no_answer())
                }
                Noticed::Death => self.die().await,
            },
        }
    }

    /// Lets a step go wrong, and says what its driver notices.
    fn go_wrong<T: Send + 'static>(
        &self,
        cell: (Fault, Step),
        at: &HypervisorName,
        doing: impl Fn(&mut World) -> Result<T, Refused> + Send + 'static,
    ) -> Noticed<T> {
        let (fault, step) = cell;
        match fault {
            Fault::RequestLost => {
                self.world().took_place(cell, at.as_str());
                Noticed::Nothing
            }
            Fault::ReplyLost => {
                let mut world = self.world();
                world.took_place(cell, at.as_str());
                let _ = doing(&mut world);
                Noticed::Nothing
            }
            Fault::Repeated => Noticed::Answer(self.repeat(cell, at, doing)),
            Fault::Late => {
                self.world().took_place(cell, at.as_str());
                self.do_later(step, at, doing);
                Noticed::Nothing
            }
            Fault::Unreachable
            | Fault::Hung
            | Fault::DiskFull
            | Fault::Rebooted
            | Fault::Emptied
            | Fault::Crashed
            | Fault::Tampered
            | Fault::ClockJumped
            | Fault::Edited
            | Fault::Stale
            | Fault::Removed
            | Fault::Restored
            | Fault::Doubled => self.strike_beside(cell, at, doing),
            Fault::DiesAfter => {
                let mut world = self.world();
                world.took_place(cell, at.as_str());
                let at_once = of_files(step) || matches!(step, Step::Load | Step::Save) || !world.random.once_in(3);
                if at_once {
                    let _ = doing(&mut world);
                } else {
                    drop(world);
                    self.do_later(step, at, doing);
                }
                Noticed::Death
            }
            Fault::CutOff => {
                let mut world = self.world();
                world.took_place(cell, at.as_str());
                world.cuts_save = true;
                let _ = doing(&mut world);
                // One that is refused has no changes to cut off, and the next save is another one.
                world.cuts_save = false;
                if world.random.once_in(2) { Noticed::Nothing } else { Noticed::Death }
            }
            Fault::DiesBefore => Noticed::Death,
        }
    }

    /// Something happens to the machine just before or just after the step is done.
    fn strike_beside<T>(
        &self,
        cell: (Fault, Step),
        at: &HypervisorName,
        doing: impl Fn(&mut World) -> Result<T, Refused>,
    ) -> Noticed<T> {
        let (fault, step) = cell;
        let mut world = self.world();
        let before = world.random.once_in(2).then(|| world.strike(fault, at)).flatten();
        if let Some(struck) = &before {
            world.took_place(cell, struck.as_str());
            let down = !world.machines.get(at).is_some_and(|machine| machine.answers(Instant::now()));
            if down && !matches!(step, Step::Load | Step::Save) {
                return Noticed::Nothing;
            }
        }
        let done = doing(&mut world);
        if before.is_none()
            && let Some(struck) = world.strike(fault, at)
        {
            world.took_place(cell, struck.as_str());
        }
        self.changed.notify_one();
        Noticed::Answer(done)
    }

    /// The second time changes nothing that the first one did not.
    fn repeat<T>(
        &self,
        cell: (Fault, Step),
        at: &HypervisorName,
        doing: impl Fn(&mut World) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let mut world = self.world();
        world.took_place(cell, at.as_str());
        let first = doing(&mut world);
        let after_first = world.machines.get(at).map(Machine::state);
        let second = doing(&mut world);
        if after_first != world.machines.get(at).map(Machine::state) {
            world.breaks("every effect can be repeated", format!("{at}: {:?}", cell.1));
        }
        if world.random.once_in(2) { first } else { second }
    }

    /// A runtime does what it was asked for while others go on. Where a file system hangs, it hangs for everybody.
    fn do_later<T: Send + 'static>(
        &self,
        step: Step,
        at: &HypervisorName,
        doing: impl Fn(&mut World) -> Result<T, Refused> + Send + 'static,
    ) {
        let mut world = self.world();
        let after = world.random.millis(100, 6_000);
        if of_files(step)
            && let Some(machine) = world.machines.get_mut(at)
        {
            machine.reach = Reach::Hangs { until: Instant::now() + after };
        }
        drop(world);
        let (sim, at) = (self.clone(), at.clone());
        tokio::spawn(async move {
            sleep(after).await;
            let mut world = sim.world();
            // What a runtime makes after its machine was left is nobody's: no pass looks there any more.
            let is_left = world.machines.get(&at).is_some_and(|machine| machine.disk.owner.is_none());
            let is_nobodys = is_left && step == Step::CreateSandbox;
            if !world.weather.calm && !is_nobodys {
                world.tell(format!("{step:?} is done late"));
                let _ = doing(&mut world);
                sim.changed.notify_one();
            }
        });
    }

    /// The driver's process is gone; nothing of it goes on.
    async fn die<T>(&self) -> T {
        self.world().dead = true;
        self.died.notify_one();
        std::future::pending().await
    }
}

impl World {
    /// How long a step takes where all is well.
    fn takes(&mut self, step: Step) -> Duration {
        match step {
            Step::Load | Step::Save => self.random.millis(0, 3),
            Step::Observe | Step::AskHealth | Step::AskBindings => self.random.millis(1, 15),
            Step::EnsureImage => self.random.millis(20, 1_500),
            Step::StopContainer => self.random.millis(10, 900),
            Step::Bind
            | Step::WriteOwner
            | Step::MakeDirectories
            | Step::MarkData
            | Step::ChangeServer
            | Step::WriteFile
            | Step::RemovePath
            | Step::RemoveContainer
            | Step::StopSandbox
            | Step::RemoveSandbox
            | Step::CreateSandbox
            | Step::CreateContainer
            | Step::StartContainer
            | Step::RemoveTree
            | Step::ForgetCluster
            | Step::RecordApplied
            | Step::Leave
            | Step::Adopt => self.random.millis(1, 60),
        }
    }

    /// The machine that is hit along with the step.
    fn place_of(&mut self, of: Of<'_>) -> HypervisorName {
        match of {
            Of::Machine(name) | Of::Network(name) => name.clone(),
            Of::Store => self.random.pick(self.machines.keys().cloned().collect::<Vec<_>>()).unwrap(),
        }
    }

    fn reaches(&self, of: Of<'_>) -> bool {
        let now = Instant::now();
        match of {
            Of::Store => true,
            Of::Machine(name) => self.machines.get(name).is_some_and(|machine| machine.answers(now)),
            Of::Network(name) => self.machines.get(name).is_some_and(|machine| machine.on_network(now)),
        }
    }
}

fn of_files(step: Step) -> bool {
    matches!(
        step,
        Step::WriteOwner
            | Step::MakeDirectories
            | Step::MarkData
            | Step::WriteFile
            | Step::RemovePath
            | Step::RemoveTree
            | Step::ForgetCluster
            | Step::RecordApplied
            | Step::Leave
            | Step::Adopt
    )
}
