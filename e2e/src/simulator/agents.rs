//! Agents beside the machines of a settled world: the real core of supervision under the simulated clock, and no pass anywhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keelway_api::{
    machine::{MachineConfig, Seen},
    name::{HypervisorName, PodName},
};
use keelway_hypervisor_agent::{
    action::{Action, PodAction},
    converge::converge,
    execute::Made,
    supervise::Supervisor,
};
use keelway_planner::{Observation, machine_configs};
use tokio::time::{Instant, sleep};

use super::{bug::Bug, fault::Fault, sim::Sim, world::World};

/// How often something goes wrong.
const BLOWS: u64 = 3;
/// How soon all is well after that, back-off of what ended again and again included.
const MENDED_WITHIN: Duration = Duration::from_secs(120);
/// How often an agent looks at most without a moment in between.
const MOST_LOOKS: usize = 8;

/// What goes wrong on machines is mended by their agents alone.
pub(super) async fn live_without_passes(sim: &Sim) {
    let mut agents = Agents::of(&sim.world());
    for _ in 0..BLOWS {
        agents.strike(&mut sim.world());
        let struck = Instant::now();
        loop {
            sleep(Duration::from_secs(1)).await;
            let mut world = sim.world();
            if world.bug != Some(Bug::AgentsSleep) {
                agents.act(&mut world);
            }
            let missing = world.missing();
            if missing.is_empty() || world.broken.is_some() {
                break;
            }
            if struck.elapsed() > MENDED_WITHIN {
                return world.breaks("what ends is restarted by the agent beside it", missing.join("; "));
            }
        }
    }
}

/// The agents of all machines, each with the config that it was given last.
struct Agents {
    started: Instant,
    all: BTreeMap<HypervisorName, Agent>,
}

struct Agent {
    config: MachineConfig,
    supervisor: Supervisor,
}

impl Agents {
    fn of(world: &World) -> Self {
        let machines = world.machines.iter().map(|(name, machine)| (name.clone(), Seen::Known(machine.state())));
        let health = world.pass.seen.health.clone();
        let seen = Observation { machines: machines.collect(), health, ..Observation::default() };
        let configs = machine_configs(&world.saved, &seen).unwrap_or_default();
        let agent = |config| Agent { config, supervisor: Supervisor::default() };
        Self { started: Instant::now(), all: configs.into_iter().map(|(name, config)| (name, agent(config))).collect() }
    }

    /// Containers end, a machine reboots, somebody changes files, an agent starts anew.
    fn strike(&mut self, world: &mut World) {
        let Some(machine) = world.random.pick(world.machines.keys().cloned().collect::<Vec<_>>()) else { return };
        let fault =
            world.random.pick([Fault::Crashed, Fault::Crashed, Fault::Crashed, Fault::Rebooted, Fault::Tampered]);
        if let Some(fault) = fault
            && let Some(struck) = world.strike(fault, &machine)
        {
            world.tell(format!("no pass: {fault:?} of {struck}"));
        }
        if world.random.once_in(3)
            && let Some(agent) = self.all.get_mut(&machine)
        {
            world.tell(format!("no pass: the agent of {machine} starts anew"));
            agent.supervisor = Supervisor::default();
        }
    }

    fn act(&mut self, world: &mut World) {
        let now = self.started.elapsed();
        for (name, agent) in &mut self.all {
            for _ in 0..MOST_LOOKS {
                if !agent.look(now, name, world) {
                    break;
                }
            }
        }
    }
}

impl Agent {
    /// Looks, decides, and does what may be done now. Says whether anything was done.
    fn look(&mut self, now: Duration, name: &HypervisorName, world: &mut World) -> bool {
        let Some(machine) = world.machines.get(name).filter(|machine| machine.answers(Instant::now())) else {
            return false;
        };
        let state = machine.state();
        let Ok(actions) = converge(&self.config, &state) else { return false };
        let round = self.supervisor.round(now, (&self.config, &state), &actions, &BTreeSet::new());
        for question in self.supervisor.questions(now) {
            self.supervisor.answered(now, &question.container, Ok(()));
        }
        let acts = !round.pods.is_empty();
        for (pod, steps) in round.pods {
            self.work_on(now, name, &pod, steps, world);
        }
        acts
    }

    fn work_on(
        &mut self,
        now: Duration,
        name: &HypervisorName,
        pod: &PodName,
        steps: Vec<PodAction>,
        world: &mut World,
    ) {
        let mut made = Made::default();
        let mut done = Vec::new();
        let mut failed = false;
        for step in steps {
            let action = Action::Pod(pod.clone(), step.clone());
            world.tell(format!("{name} agent: {action}"));
            match world.perform(name, &action, &made) {
                Ok(id) => {
                    match (&step, id) {
                        (PodAction::CreateContainer(new), Some(id)) => {
                            made.containers.insert(new.container.name.clone(), id);
                        }
                        (_, Some(id)) => made.sandbox = Some(id),
                        (_, None) => {}
                    }
                    done.push(step);
                }
                Err(refused) => {
                    world.tell(format!("{name} agent failed: {refused}"));
                    failed = true;
                    break;
                }
            }
        }
        self.supervisor.done(now, pod, &done);
        if failed {
            self.supervisor.failed(now, pod);
        }
    }
}
