//! How fast control planes start and pass, and what they take, beside the same programs as plain processes:
//! `KEELWAY_BENCH_ROUNDS=7 cargo bench -p keelway-e2e --bench start`. Needs what live tests need.
//!
//! Rounds are interleaved, so that what else the machine does meets both sides. The table is the last thing on stdout.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

mod memory;
mod plain;
mod size;
mod table;

use std::{env, fs, path::Path, time::Instant};

use keelway_e2e::{World, host::on_own_host};
use size::Size;
use table::Table;

/// Rounds where `$KEELWAY_BENCH_ROUNDS` does not say how many.
const ROUNDS: usize = 7;
/// What components' users may enter.
const DIRECTORY: &str = "/var/lib/keelway-bench";

/// Figures of one size, a value a round.
#[derive(Default)]
struct Figures {
    start: [Vec<f64>; 2],
    memory: [Vec<f64>; 2],
    total: [Vec<f64>; 2],
    again: [Vec<f64>; 2],
    pass: Vec<f64>,
    processor: Vec<f64>,
}

fn main() {
    let rounds = env::var("KEELWAY_BENCH_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    on_own_host("start", || println!("{}", measure(rounds)));
}

fn measure(rounds: usize) -> String {
    let mut world = World::new("e2ebst");
    let made = world.create(|keelway, fleet| {
        keelway.run(&["hypervisor", "local", "create", "--fleet", fleet, "--public", "2", "--private", "3"], &[])
    });
    let sizes = [Size { replicas: 1, ingresses: 1 }, Size { replicas: 3, ingresses: 2 }];
    let mut figures = sizes.each_ref().map(|_| Figures::default());
    // The first round imports images, and is not counted.
    for round in 0..=rounds {
        for (size, figures) in sizes.iter().zip(&mut figures) {
            let started = Instant::now();
            let mut seen = Figures::default();
            size.round(&world, &made, Path::new(DIRECTORY), &mut seen);
            if round > 0 {
                figures.extend(seen);
            }
            println!("round {round} of {size:?}: {:.1} s", started.elapsed().as_secs_f32());
        }
    }
    fs::remove_dir_all(DIRECTORY).unwrap();
    report(rounds, &figures)
}

impl Figures {
    fn extend(&mut self, other: Self) {
        let pairs = [
            (&mut self.start, other.start),
            (&mut self.memory, other.memory),
            (&mut self.total, other.total),
            (&mut self.again, other.again),
        ];
        for (mine, theirs) in pairs {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.extend(theirs));
        }
        self.pass.extend(other.pass);
        self.processor.extend(other.processor);
    }
}

fn report(rounds: usize, [one, three]: &[Figures; 2]) -> String {
    let mut table = Table::new(rounds);
    let beside = "the same programs as plain processes";
    let [ours, plain] = &one.start;
    table.ratio(
        &format!("from `reconcile` to its end, one replica, beside {beside} until `/readyz`"),
        "s",
        ours,
        plain,
        1.3,
    );
    let [ours, plain] = &three.start;
    table.ratio(
        "three replicas on three machines, beside all the plain processes started at once",
        "s",
        ours,
        plain,
        1.5,
    );
    table.under("settled `reconcile` over that cluster, process and all", "ms", &three.pass, 100.0);
    table.under("CPU time of it", "ms", &three.processor, 20.0);
    let [ours, plain] = &one.memory;
    table.ratio(
        &format!("memory of one replica's etcd and Kubernetes components, beside {beside}"),
        "MiB",
        ours,
        plain,
        1.05,
    );
    let [ours, plain] = &one.total;
    table.ratio(
        "the total, with haproxy, shims and pauses, beside the plain processes with haproxy",
        "MiB",
        ours,
        plain,
        1.25,
    );
    let [ours, plain] = &one.again;
    table.difference(
        "API server killed until `/readyz`, beside the plain process started by hand",
        "s",
        ours,
        plain,
        0.5,
    );
    table.finish()
}
