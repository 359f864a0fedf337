//! Measures the replacement of an etcd member and a snapshot, compared with the same steps by hand: `KEELWAY_BENCH_ROUNDS=7 cargo bench
//! -p keelway-e2e --bench stores`. It needs what live tests need.
//!
//! By hand, a person uses `etcdctl` on a store of the same programs, certificates and data, whose members are plain processes on the same machines.
//! Rounds are interleaved. The first round is not counted.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

mod by_hand;
mod etcdctl;
mod keelway_side;
mod peers;
#[path = "../start/table.rs"]
#[expect(dead_code, reason = "the other benchmarks have other kinds of rows")]
mod table;

use std::{env, fs, path::Path};

use by_hand::StoreByHand;
use keelway_e2e::{Plane, ReachMode, TestFleet, host::on_own_host};
use table::Table;

/// The number of rounds if `$KEELWAY_BENCH_ROUNDS` is not set.
const ROUNDS: usize = 7;
/// The size of the database in MiB if `$KEELWAY_BENCH_DATABASE` is not set.
const DATABASE: usize = 100;
/// etcd members, API servers and ingresses.
const REPLICAS: [&str; 3] = ["3", "2", "1"];
/// The machine is quiet at the start if its load average is below this.
const QUIET: f64 = 1.0;

/// Times in seconds, one value per round. The first is of Keelway, the second by hand.
#[derive(Debug, Default)]
struct Figures {
    replaced: [Vec<f64>; 2],
    /// Until `keelway reconcile` ended.
    settled: Vec<f64>,
    saved: [Vec<f64>; 2],
}

fn main() {
    on_own_host("stores", || {
        let load = load();
        let number = |name: &str, otherwise| env::var(name).map_or(otherwise, |text| text.parse().unwrap());
        let rounds = number("KEELWAY_BENCH_ROUNDS", ROUNDS);
        let database = number("KEELWAY_BENCH_DATABASE", DATABASE);
        let table = table(&measure(rounds, database), rounds, database);
        println!("{table}");
        match env::var_os("KEELWAY_BENCH_PAGE") {
            Some(page) if load < QUIET && database == DATABASE => table::write_into(Path::new(&page), "stores", &table),
            Some(_) => println!("the table is not written: load average {load} at the start, {database} MiB"),
            None => {}
        }
    });
}

fn measure(rounds: usize, database: usize) -> Figures {
    let mut world = TestFleet::new("e2ebso");
    let machines = world.create_reached(ReachMode::Network, "1", "4");
    let mut plane = Plane::with_replicas(&world, &machines, REPLICAS);
    let mut by_hand = StoreByHand::start(&plane);
    keelway_side::prepare(&mut plane, database);
    by_hand.fill(&plane, database);
    let mut figures = Figures::default();
    for round in 0..=rounds {
        let (replaced, settled) = keelway_side::replace(&mut plane);
        let saved = keelway_side::save(&plane);
        let seen = Figures {
            replaced: [vec![replaced], vec![by_hand.replace(&plane)]],
            settled: vec![settled],
            saved: [vec![saved], vec![etcdctl::save(&plane)]],
        };
        println!("round {round}: {seen:.2?}");
        if round > 0 {
            figures.extend(seen);
        }
    }
    figures
}

impl Figures {
    fn extend(&mut self, other: Self) {
        let pairs = [(&mut self.replaced, other.replaced), (&mut self.saved, other.saved)];
        for (mine, theirs) in pairs {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.extend(theirs));
        }
        self.settled.extend(other.settled);
    }
}

fn table(figures: &Figures, rounds: usize, database: usize) -> String {
    let mut table = Table::new("stores", rounds);
    table.fastest(
        &format!(
            "a member of a database of {database} MiB lost its data: from `keelway reconcile` until another member is a voter and responds, \
             beside `etcdctl member remove`, `member add --learner`, the start of etcd, `member promote` and `endpoint health`; the fastest rounds"
        ),
        "s",
        &figures.replaced,
        1.5,
    );
    table.shown("the same in the median of the rounds, with Keelway", "s", &figures.replaced[0]);
    table.shown("the same in the median of the rounds, by hand", "s", &figures.replaced[1]);
    table.shown("the same until `reconcile` ends, and API servers use the new member", "s", &figures.settled);
    table.ratio(
        "a snapshot of that database by `keelway snapshot create`: verified, sealed and stored, beside `etcdctl snapshot save`",
        "s",
        &figures.saved,
        1.3,
    );
    table.finish()
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(f64::INFINITY)
}
