//! Agents on the machines of a settled fleet: the real supervisor with the simulated clock, and no passes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keelway_api::{
    jiff::SignedDuration,
    machine::{ContainerCheck, MachineConfig, ObservedValue, SERVING_CERTIFICATE},
    name::{HypervisorName, PodName},
};
use keelway_machine::{
    action::{Action, PodAction},
    converge::converge,
    supervise::{LivenessQuery, Supervisor},
};
use keelway_machine_io::execute::CreatedIds;
use keelway_pki::CertificateFacts;
use keelway_planner::{PassObservation, machine_configs};
use tokio::time::{Instant, sleep};

use super::{bug::Bug, fault::InjectedFault, fault_steps::Sim, state::SimulationState};

/// The number of rounds of faults.
const BLOWS: u64 = 3;
/// The time within which everything must run again after a fault, including back-off of containers that exit repeatedly.
const MENDED_WITHIN: Duration = Duration::from_secs(120);
/// One of this many runs continues after all certificates have expired.
const ENDS: u32 = 5;
/// The final jump of the clock, which is past the end of every certificate.
const BEYOND_ALL_CERTIFICATES: SignedDuration = SignedDuration::from_hours(20 * 365 * 24);
/// The time for which agents run with expired certificates. It is longer than the time for which a check may fail.
const QUIET: Duration = Duration::from_secs(120);
/// The maximum number of rounds of an agent at one moment.
const MOST_LOOKS: usize = 8;

/// Injects faults and checks that agents alone repair them.
pub(super) async fn run_without_passes(sim: &Sim) {
    let mut agents = Agents::of(&sim.world());
    for _ in 0..BLOWS {
        agents.inject_faults(&mut sim.world());
        let struck = Instant::now();
        loop {
            sleep(Duration::from_secs(1)).await;
            let mut world = sim.world();
            if world.bug != Some(Bug::AgentsSleep) {
                agents.act(&mut world);
            }
            let missing = world.missing();
            if missing.is_empty() || world.broken_rule.is_some() {
                break;
            }
            if struck.elapsed() > MENDED_WITHIN {
                return world.report_violation("what ends is restarted by the agent beside it", missing.join("; "));
            }
        }
        if sim.world().broken_rule.is_some() {
            return;
        }
    }
    if sim.world().random.one_in(ENDS) {
        agents.outlive_certificates(sim).await;
    }
}

/// The agents of all machines, each with its last config.
struct Agents {
    started: Instant,
    all: BTreeMap<HypervisorName, SimulatedAgent>,
}

struct SimulatedAgent {
    config: MachineConfig,
    supervisor: Supervisor,
}

impl Agents {
    fn of(world: &SimulationState) -> Self {
        let machines =
            world.machines.iter().map(|(name, machine)| (name.clone(), ObservedValue::Known(machine.state())));
        let health = world.pass.seen.health.clone();
        let seen = PassObservation { machines: machines.collect(), health, ..PassObservation::default() };
        let configs = machine_configs(&world.saved, &seen).unwrap_or_default();
        let agent = |config| SimulatedAgent { config, supervisor: Supervisor::default() };
        Self { started: Instant::now(), all: configs.into_iter().map(|(name, config)| (name, agent(config))).collect() }
    }

    /// Makes containers exit, reboots a machine or changes files, and sometimes restarts an agent.
    fn inject_faults(&mut self, world: &mut SimulationState) {
        let Some(machine) = world.random.pick(world.machines.keys().cloned().collect::<Vec<_>>()) else { return };
        let fault = world.random.pick([
            InjectedFault::Crashed,
            InjectedFault::Crashed,
            InjectedFault::Crashed,
            InjectedFault::Rebooted,
            InjectedFault::Tampered,
        ]);
        if let Some(fault) = fault
            && let Some(struck) = world.inject(fault, &machine)
        {
            world.trace_line(format!("no pass: {fault:?} of {struck}"));
        }
        if world.random.one_in(3)
            && let Some(agent) = self.all.get_mut(&machine)
        {
            world.trace_line(format!("no pass: the agent of {machine} starts anew"));
            agent.supervisor = Supervisor::default();
        }
    }

    /// Checks that agents stop nothing if every certificate expires and is not renewed.
    async fn outlive_certificates(&mut self, sim: &Sim) {
        sim.world().jump(BEYOND_ALL_CERTIFICATES);
        sim.world().trace_line("no pass: all certificates have ended");
        let began = Instant::now();
        while began.elapsed() < QUIET {
            sleep(Duration::from_secs(1)).await;
            let mut world = sim.world();
            let stopped = self.act(&mut world);
            if let Some(pod) = stopped.first() {
                return world.report_violation("certificates that end stop nothing", pod.to_string());
            }
        }
    }

    /// Lets all agents act. Returns the pods that lost a container or their sandbox.
    fn act(&mut self, world: &mut SimulationState) -> Vec<PodName> {
        let mut stopped = Vec::new();
        let now = self.started.elapsed();
        for (name, agent) in &mut self.all {
            for _ in 0..MOST_LOOKS {
                let Some(done) = agent.look(now, name, world) else { break };
                stopped.extend(done);
            }
        }
        stopped
    }
}

impl SimulatedAgent {
    /// Observes, decides, and executes what is due. Returns the pods that lost a container or their sandbox, or `None` if there was nothing to do.
    fn look(&mut self, now: Duration, name: &HypervisorName, world: &mut SimulationState) -> Option<Vec<PodName>> {
        let machine = world.machines.get(name).filter(|machine| machine.answers(Instant::now()))?;
        let state = machine.state();
        let actions = converge(&self.config, &state).ok()?;
        let round = self.supervisor.round(now, (&self.config, &state), &actions, &BTreeSet::new());
        for question in self.supervisor.questions(now) {
            let answer = world.answer(name, &question);
            self.supervisor.record_answer(now, &question.container, answer);
        }
        let acts = !round.pods.is_empty();
        let mut stopped = Vec::new();
        for (pod, steps) in round.pods {
            if steps.iter().any(is_stop) {
                stopped.push(pod.clone());
            }
            self.work_on(now, name, &pod, steps, world);
        }
        acts.then_some(stopped)
    }

    fn work_on(
        &mut self,
        now: Duration,
        name: &HypervisorName,
        pod: &PodName,
        steps: Vec<PodAction>,
        world: &mut SimulationState,
    ) {
        let mut made = CreatedIds::default();
        let mut done = Vec::new();
        let mut failed = false;
        for step in steps {
            let action = Action::Pod(pod.clone(), step.clone());
            world.trace_line(format!("{name} agent: {action}"));
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
                    world.trace_line(format!("{name} agent failed: {refused}"));
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

fn is_stop(step: &PodAction) -> bool {
    matches!(step, PodAction::StopContainer { .. } | PodAction::StopSandbox { .. })
}

impl SimulationState {
    /// Returns the result of a liveness check. All running containers are live, even if their certificates have expired.
    fn answer(&self, machine: &HypervisorName, question: &LivenessQuery) -> Result<(), String> {
        let checks_dates = self.bug == Some(Bug::ChecksDates) && matches!(question.check, ContainerCheck::Https { .. });
        let found = self.machines.get(machine).filter(|_| checks_dates);
        let Some(pem) = found.and_then(|found| found.disk.read(&question.pod, SERVING_CERTIFICATE)) else {
            return Ok(());
        };
        let facts = CertificateFacts::from_pem(&String::from_utf8_lossy(&pem)).map_err(|error| error.to_string())?;
        if facts.validity.not_after() <= self.now() {
            return Err("the certificate has ended".to_owned());
        }
        Ok(())
    }
}
