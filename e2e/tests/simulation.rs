//! The simulated fleet, with many seeds.
#![expect(clippy::panic, clippy::print_stdout, reason = "tests fail by panicking, and print what they counted")]

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use keelway_e2e::simulator::{
    BrokenRule, Bug, Cell, FaultTable, PersonActionCounts, SimulationReport, seeds_for, simulate, simulate_with_bug,
};

/// The number of runs in `cargo test`.
const SEEDS: u64 = 250;
/// The number of runs in `make soak`, if `KEELWAY_SEEDS` is not set.
const SOAK: u64 = 100_000;
/// The number of runs within which each planted bug must be found.
const FOUND_WITHIN: u64 = 1_000;
/// Runs that found bugs before. They are tried first.
const LIKELY: [u64; 10] = [0, 89, 38, 32, 11, 43, 7, 4, 56, 93];
/// Runs with rollouts that found bugs in rollouts before.
const LIKELY_ROLLOUTS: [u64; 6] = [2, 37, 8, 122, 20, 25];
/// Runs with clusters that sleep that found bugs in their sleep before.
const LIKELY_SLEEPS: [u64; 3] = [10, 56, 82];
/// The most additional runs for a cell of the table that no run has hit.
const AIMED: usize = 40;
/// The number of trace lines that are printed for a run that fails.
const SHOWN: usize = 250;

#[test]
fn every_rule_holds_whatever_happens() {
    if let Some(seed) = number("KEELWAY_SEED") {
        return replay(seed);
    }
    let Met { mut table, deeds, .. } = run(0..SEEDS);
    assert_eq!(deeds.missing(), [], "nobody did these");
    for cell in table.empty() {
        aim_at(cell, &mut table);
    }
    assert!(table.empty().is_empty(), "no fault hit these steps: {:?}", table.empty());
}

/// Adds runs that are likely to hit one cell of the table until one hits it. Rare combinations are not in every range of seeds.
fn aim_at(cell: Cell, table: &mut FaultTable) {
    let hit = seeds_for(cell).skip_while(|seed| *seed < SEEDS).take(AIMED).any(|seed| {
        let life = simulate(seed);
        table.add(&life.table);
        if life.broken_rule.is_some() {
            fail(&life);
        }
        !table.empty().contains(&cell)
    });
    println!("{cell:?} was aimed at: {hit}");
}

#[test]
#[ignore = "a long run"]
fn every_rule_holds_for_long() {
    let from = number("KEELWAY_FIRST_SEED").unwrap_or(0);
    run(from..from + number("KEELWAY_SEEDS").unwrap_or(SOAK));
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 77] {
        assert_eq!(simulate(seed).trace, simulate(seed).trace, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    let only = std::env::var("KEELWAY_BUG").ok();
    for bug in Bug::ALL.into_iter().filter(|bug| only.as_ref().is_none_or(|only| *only == format!("{bug:?}"))) {
        let likely = if matches!(bug, Bug::InRollout(_)) {
            LIKELY_ROLLOUTS.as_slice()
        } else if matches!(bug, Bug::InSleep(_)) {
            LIKELY_SLEEPS.as_slice()
        } else {
            LIKELY.as_slice()
        };
        let mut seeds = likely.iter().copied().chain(0..FOUND_WITHIN).filter(|seed| bug.can_occur(*seed));
        // A bug in what people request has to be found by its own rule.
        let is_found = |broken: &BrokenRule| bug.rule().is_none_or(|rule| rule == broken.rule);
        let found = seeds.find_map(|seed| Some((seed, simulate_with_bug(seed, bug).broken_rule.filter(is_found)?)));
        let (seed, broken) = found.unwrap_or_else(|| panic!("{bug:?} is not found in {FOUND_WITHIN} runs"));
        println!("{bug:?}: found by seed {seed}: {}: {}", broken.rule, broken.what);
    }
}

/// Runs these seeds on all cores, and prints the totals.
fn run(seeds: Range<u64>) -> Met {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let take = || {
        let mut met = Met::default();
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end) {
            met.add(simulate(seed));
            if !met.failed.is_empty() {
                next.store(seeds.end, Ordering::Relaxed);
            }
        }
        met
    };
    let all = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(take)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect::<Vec<_>>()
    });
    let mut met = Met::default();
    for other in all {
        met.merge(other);
    }
    println!(
        "{} runs in {:.0} s: {} passes, {} effects, {} faults; at rest after at most {} passes without faults",
        met.runs,
        began.elapsed().as_secs_f64(),
        met.passes,
        met.effects,
        met.faults,
        met.settled_in
    );
    println!("{}\n{}", met.table, met.deeds);
    met.failed.sort_by_key(|life| life.seed);
    if let Some(life) = met.failed.first() {
        fail(life);
    }
    met
}

#[derive(Default)]
struct Met {
    runs: u64,
    passes: u64,
    effects: u64,
    faults: u64,
    settled_in: u64,
    table: FaultTable,
    deeds: PersonActionCounts,
    failed: Vec<SimulationReport>,
}

impl Met {
    fn add(&mut self, life: SimulationReport) {
        self.runs += 1;
        self.passes += life.counts.passes;
        self.effects += life.counts.effects;
        self.faults += life.counts.faults;
        self.settled_in = self.settled_in.max(life.passes_to_settle);
        self.table.add(&life.table);
        self.deeds.add(&life.actions);
        if life.broken_rule.is_some() {
            self.failed.push(life);
        }
    }

    fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.passes += other.passes;
        self.effects += other.effects;
        self.faults += other.faults;
        self.settled_in = self.settled_in.max(other.settled_in);
        self.table.add(&other.table);
        self.deeds.add(&other.deeds);
        self.failed.extend(other.failed);
    }
}

fn replay(seed: u64) {
    let life = simulate(seed);
    println!("{}\n{:?}", life.trace.join("\n"), life.counts);
    if life.broken_rule.is_some() {
        fail(&life);
    }
}

fn fail(life: &SimulationReport) {
    let from = life.trace.len().saturating_sub(SHOWN);
    let broken =
        life.broken_rule.as_ref().map(|broken| format!("{}: {}", broken.rule, broken.what)).unwrap_or_default();
    panic!(
        "seed {seed}: {broken}\n\n{trace}\n\nreplay it with\n  KEELWAY_SEED={seed} cargo test -p keelway-e2e --test simulation every_rule_holds_whatever -- --nocapture",
        seed = life.seed,
        trace = life.trace[from..].join("\n"),
    );
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
