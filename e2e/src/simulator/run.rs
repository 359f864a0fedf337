//! One run, from the first document to a settled fleet.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use keelway_api::name::HypervisorName;
use keelway_base::error_chain::chain_text;
use keelway_planner::{Waiting, invariants};
use keelway_reconciler::{
    PassContext, PassError, PassOutcome, RunControl, RunLimits, RunOutcome, RunProgress, adopt, pass, run,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    agents::run_without_passes,
    bug::Bug,
    components::SimulatedComponents,
    fault::{FaultPoint, FaultTable},
    fault_steps::Sim,
    machine::SimulatedHypervisor,
    machines::SimulatedMachines,
    minter::SimulatedMinter,
    person::{PersonAction, PersonActionCounts},
    rules::shows_a_key,
    state::{BrokenRule, SimulationCounts, SimulationState},
    store::SimulatedStore,
};

/// The maximum number of passes until the fleet settles after the last fault.
const MOST_PASSES: u64 = 120;
/// The time within which a loss must be reported.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);
/// The time within which the fleet must settle.
const PATIENCE: Duration = Duration::from_secs(900);

/// The result of one run.
#[derive(Debug, Clone)]
pub struct SimulationReport {
    /// The seed, which determines everything else.
    pub seed: u64,
    /// The first rule that was broken.
    pub broken_rule: Option<BrokenRule>,
    /// The events, one per line.
    pub trace: Vec<String>,
    /// The faults by step.
    pub table: FaultTable,
    /// The actions of people.
    pub actions: PersonActionCounts,
    /// The numbers of passes, effects and faults.
    pub counts: SimulationCounts,
    /// The number of passes from the last fault until the fleet was settled.
    pub passes_to_settle: u64,
}

/// Runs one simulation.
///
/// The seed determines everything that happens, including the time.
#[must_use]
pub fn simulate(seed: u64) -> SimulationReport {
    run_through(seed, None)
}

/// Runs one simulation with a planted bug.
#[cfg(feature = "planted-bugs")]
#[must_use]
pub fn simulate_with_bug(seed: u64, bug: Bug) -> SimulationReport {
    run_through(seed, Some(bug))
}

fn run_through(seed: u64, bug: Option<Bug>) -> SimulationReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let sim = Sim::new(SimulationState::new(seed, bug));
        let settled_in = run_scenario(&sim).await;
        let mut world = sim.world();
        if !world.trace().iter().all(|line| !shows_a_key(line)) {
            world.report_violation("no key is in what people read", "see the trace");
        }
        SimulationReport {
            seed,
            broken_rule: world.broken_rule.clone(),
            trace: world.trace().to_vec(),
            table: world.table.clone(),
            actions: world.actions.clone(),
            counts: world.counts,
            passes_to_settle: settled_in,
        }
    })
}

async fn run_scenario(sim: &Sim) -> u64 {
    sim.world().begin();
    let ticking = tokio::spawn(tick(sim.clone()));
    let epochs = {
        let mut world = sim.world();
        world.random.between(2, 4)
            + world.rollouts.more_epochs()
            + world.losses.more_epochs()
            + world.restores.more_epochs()
            + world.sleeps.more_epochs()
    };
    for epoch in 0..epochs {
        {
            let mut world = sim.world();
            let goes = world.weather.aim.1.needs_removal() || world.random.one_in(4);
            match epoch {
                0 => {}
                last if last + 1 == epochs && goes => world.delete_all(),
                _ => world.edit(),
            }
            world.roll_out();
        }
        adopt_foreign_machines(sim).await;
        drive_until_deadline(sim).await;
        if sim.world().broken_rule.is_some() {
            break;
        }
    }
    let settled_in = settle(sim).await;
    if sim.world().broken_rule.is_none() {
        run_without_passes(sim).await;
    }
    ticking.abort();
    settled_in
}

/// Injects the faults that occur between steps.
async fn tick(sim: Sim) {
    loop {
        sleep(Duration::from_secs(1)).await;
        sim.world().advance();
        sim.changed.notify_one();
    }
}

/// Runs the driver until the time is over, and restarts it after it was killed or gave up.
async fn drive_until_deadline(sim: &Sim) {
    let (lasts, once, stops) = {
        let mut world = sim.world();
        (world.random.millis(3_000, 15_000), world.random.one_in(5), world.random.one_in(5))
    };
    let begins = tokio::time::Instant::now();
    while begins.elapsed() < lasts && sim.world().broken_rule.is_none() {
        let limits = RunLimits { once, timeout: lasts.saturating_sub(begins.elapsed()) };
        let stop = CancellationToken::new();
        if stops {
            let (stop, after) = (stop.clone(), sim.world().random.millis(50, 5_000));
            tokio::spawn(async move {
                sleep(after).await;
                stop.cancel();
            });
        }
        if let Some(RunOutcome::Settled) = drive(sim, limits, stop).await {
            break;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// A person adopts machines that obey another installation.
async fn adopt_foreign_machines(sim: &Sim) {
    let from = {
        let mut world = sim.world();
        let owners: Vec<_> = world.machines.values().filter_map(|machine| machine.strangers.owner.clone()).collect();
        let wants = world.weather.aim.1 == FaultPoint::Adopt || world.random.one_in(2);
        world.random.pick(owners).filter(|_| wants)
    };
    let Some(from) = from else { return };
    let context = context(sim, CancellationToken::new());
    let mut minter = SimulatedMinter(sim.clone());
    sim.world().begin_process();
    sim.world().record_action(PersonAction::Adopts);
    let ended = tokio::select! {
        biased;
        () = sim.died.notified() => None,
        ended = adopt(&context, &mut minter, &from, &[]) => Some(ended),
    };
    let mut world = sim.world();
    match ended {
        None => world.trace_line("the driver dies"),
        Some(Ok((_, names))) => world.trace_line(format!("taken over from {from}: {names:?}")),
        Some(Err(error)) => {
            let why = chain_text(&error);
            world.trace_line(format!("nothing is taken over: {why}"));
            if shows_a_key(&why) {
                world.report_violation("no key is in an error", why);
            }
        }
    }
}

/// Runs the driver's process once.
async fn drive(sim: &Sim, limits: RunLimits, stop: CancellationToken) -> Option<RunOutcome> {
    let context = context(sim, stop);
    let mut minter = SimulatedMinter(sim.clone());
    sim.world().begin_process();
    let ended = tokio::select! {
        biased;
        () = sim.died.notified() => None,
        ended = run(&context, &mut minter, limits) => Some(ended),
    };
    let mut world = sim.world();
    let Some(ended) = ended else {
        world.trace_line("the driver dies");
        return None;
    };
    match ended {
        Ok((end, outcome)) => {
            world.trace_line(format!("the driver ends: {end:?}"));
            world.check_outcome(&outcome);
            Some(end)
        }
        Err(error) => {
            world.trace_line(format!("the driver fails: {}", chain_text(&error)));
            world.check_error(&error);
            None
        }
    }
}

/// Ends all faults and checks that the fleet settles and stays settled.
async fn settle(sim: &Sim) -> u64 {
    if sim.world().broken_rule.is_some() {
        return 0;
    }
    sim.world().stop_faults();
    delete_clusters_without_data(sim).await;
    delete_clusters_lost_at_birth(sim).await;
    delete_expired_clusters(sim).await;
    recover_lost_quorums(sim).await;
    let before = sim.world().counts.passes;
    let end = drive(sim, RunLimits { once: false, timeout: PATIENCE }, CancellationToken::new()).await;
    let taken = sim.world().counts.passes - before;
    {
        let mut world = sim.world();
        let waiting = world.waiting.join("; ");
        if end != Some(RunOutcome::Settled) {
            world.report_violation("a world without faults settles", format!("{end:?}: {waiting}"));
        } else if taken > MOST_PASSES {
            world.report_violation("a world without faults settles soon", format!("{taken} passes: {waiting}"));
        }
        if world.broken_rule.is_some() {
            return taken;
        }
        world.check_rest();
    }
    check_stable(sim).await;
    taken
}

/// Checks that an etcd member that lost its data is reported, and deletes its cluster.
async fn delete_clusters_without_data(sim: &Sim) {
    let lost = sim.world().clusters_that_lost_data();
    if lost.is_empty() {
        return;
    }
    let end = drive(sim, RunLimits { once: false, timeout: REPORTED_WITHIN }, CancellationToken::new()).await;
    let mut world = sim.world();
    // What is reported of a store on lost machines depends on which of its members were there.
    let has_losses = !world.losses.lost.is_empty();
    for name in lost {
        let of_member = |waiting: &&String| waiting.starts_with(&format!("{name}/etcd-")) && waiting.contains("data");
        let of_store = |waiting: &&String| has_losses && waiting.starts_with(&format!("{name}/etcd"));
        let is_reported = world.waiting.iter().any(|waiting| of_member(&waiting) || of_store(&waiting));
        if end == Some(RunOutcome::Settled) || !is_reported {
            let what = format!("{name}: {end:?}, waits for {}", world.waiting.join("; "));
            world.report_violation("a store that lost data is reported", what);
        }
        world.delete(&name);
    }
}

/// Checks that a first member whose machine is lost is reported, and deletes its cluster, which has no data yet.
async fn delete_clusters_lost_at_birth(sim: &Sim) {
    if sim.world().losses.lost.is_empty() {
        return;
    }
    let end = drive(sim, RunLimits { once: false, timeout: REPORTED_WITHIN }, CancellationToken::new()).await;
    let mut world = sim.world();
    for name in world.clusters_lost_at_birth() {
        let is_reported = world.waiting.iter().any(|waiting| waiting.starts_with(&format!("{name}/etcd-")));
        if end == Some(RunOutcome::Settled) || !is_reported {
            let what = format!("{name}: {end:?}, waits for {}", world.waiting.join("; "));
            world.report_violation("a first member on a lost machine is reported", what);
        }
        world.delete(&name);
    }
}

/// Checks that a lost quorum is reported with the command that ends it, and lets a person run that command.
async fn recover_lost_quorums(sim: &Sim) {
    let has_lost = !sim.world().losses.lost.is_empty();
    if !has_lost {
        return;
    }
    let end = drive(sim, RunLimits { once: false, timeout: REPORTED_WITHIN }, CancellationToken::new()).await;
    let mut world = sim.world();
    for (name, lost) in world.stores_without_quorum() {
        let command = format!("`keelway cluster recover-quorum --name {} --lost ", name.name);
        let is_reported = world
            .waiting
            .iter()
            .any(|waiting| waiting.starts_with(&format!("{name}/etcd")) && waiting.contains(&command));
        if end == Some(RunOutcome::Settled) || !is_reported {
            let what = format!("{name} without {lost:?}: {end:?}, waits for {}", world.waiting.join("; "));
            world.report_violation("a lost quorum is reported with the command that ends it", what);
        }
    }
    world.request_recoveries();
}

/// Checks that a cluster whose authority expired is reported, and that all others continue. Deletes the cluster.
async fn delete_expired_clusters(sim: &Sim) {
    let ended = sim.world().clusters_whose_authority_ended();
    if ended.is_empty() {
        return;
    }
    let end = drive(sim, RunLimits { once: false, timeout: REPORTED_WITHIN }, CancellationToken::new()).await;
    let mut world = sim.world();
    for name in ended {
        let is_reported =
            world.waiting.iter().any(|waiting| waiting.starts_with(&format!("{name} waits for an authority")));
        if end == Some(RunOutcome::Settled) || !is_reported {
            let what = format!("{name}: {end:?}, waits for {}", world.waiting.join("; "));
            world.report_violation("an expired authority is reported on its cluster", what);
        }
        world.delete(&name);
    }
}

/// Checks that one more pass of a settled fleet changes nothing.
async fn check_stable(sim: &Sim) {
    let context = context(sim, CancellationToken::new());
    let (saved, machines) = {
        let world = sim.world();
        (world.saved.clone(), machine_states(&world.machines))
    };
    let outcome = pass(&context, &mut SimulatedMinter(sim.clone())).await;
    let mut world = sim.world();
    let rule = "a settled world plans to nothing";
    match outcome {
        Ok(outcome) if outcome.settled && outcome.effects == 0 && outcome.failures.is_empty() => {}
        Ok(outcome) => {
            world.report_violation(rule, format!("{} effects, waits for {:?}", outcome.effects, outcome.plan.waiting));
        }
        Err(error) => world.report_violation(rule, chain_text(&error)),
    }
    if world.saved != saved {
        world.report_violation(rule, "documents were saved");
    }
    if machine_states(&world.machines) != machines {
        world.report_violation(rule, "a machine changed");
    }
}

fn machine_states(machines: &BTreeMap<HypervisorName, SimulatedHypervisor>) -> Vec<keelway_api::machine::MachineState> {
    machines.values().map(SimulatedHypervisor::state).collect()
}

fn context(sim: &Sim, stop: CancellationToken) -> PassContext {
    let clock = sim.clone();
    PassContext {
        store: Arc::new(SimulatedStore(sim.clone())),
        machines: Arc::new(SimulatedMachines(sim.clone())),
        components: Arc::new(SimulatedComponents(sim.clone())),
        clock: Arc::new(move || clock.world().driver_now()),
        run: RunControl { stop, progress: Arc::new(RecordingWatcher(sim.clone())) },
    }
}

/// Records the progress that a user would see.
struct RecordingWatcher(Sim);

impl RunProgress for RecordingWatcher {
    fn effect(&self, machine: &HypervisorName, action: &str) {
        self.0.world().trace_line(format!("{machine} {action}"));
    }

    fn waiting(&self, waiting: &[Waiting]) {
        let mut world = self.0.world();
        world.waiting = waiting.iter().map(ToString::to_string).collect();
    }
}

impl SimulationState {
    fn begin_process(&mut self) {
        self.dead = false;
        self.unsaved = None;
    }

    fn check_outcome(&mut self, outcome: &PassOutcome) {
        let documents = outcome.plan.documents.clone();
        self.check_documents(&documents);
        // Nothing is planned from stale documents, so there is nothing to explain.
        let planned = !self.pass.stale && !self.refused_as_stale();
        for violation in invariants::check_replicas(&outcome.plan).into_iter().filter(|_| planned) {
            self.report_violation(violation.invariant, violation.what);
        }
        for failure in &outcome.failures {
            self.trace_line(format!("{} failed: {}", failure.subject, failure.reason));
            if shows_a_key(&failure.reason) {
                self.report_violation("no key is in an error", failure.reason.clone());
            }
        }
    }

    /// A pass fails only if its store fails.
    fn check_error(&mut self, error: &PassError) {
        if !matches!(error, PassError::Store(_)) {
            self.report_violation("a pass fails with its store alone", chain_text(error));
        }
        if shows_a_key(&chain_text(error)) {
            self.report_violation("no key is in an error", chain_text(error));
        }
    }
}
