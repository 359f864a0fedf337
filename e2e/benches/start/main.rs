//! Measures start times, pass times and memory of control planes, compared with the same programs as plain processes:
//! `KEELWAY_BENCH_ROUNDS=7 cargo bench -p keelway-e2e --bench start`. It needs what live tests need.
//!
//! Rounds are interleaved, so that other load on the machine affects both sides. The benchmark prints the table last, and writes it into the page
//! that `$KEELWAY_BENCH_PAGE` names. `cargo xtask bench` sets both variables, and runs the agents that are shipped.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

mod agent;
mod bindings;
mod footprint;
mod memory;
mod plain;
mod size;
mod started_cluster;
mod store;
#[expect(dead_code, reason = "another benchmark has other kinds of rows")]
mod table;

use std::{env, fs, path::Path, time::Instant};

use keelway_e2e::{TestFleet, host::on_own_host};
use size::{AGE, Size};
use table::Table;

/// The number of rounds if `$KEELWAY_BENCH_ROUNDS` is not set.
const ROUNDS: usize = 7;
/// A directory that the users of components can enter. It is on the same file system as the state of the machines.
const DIRECTORY: &str = "/var/lib/keelway-bench";

/// Measurements of one cluster size, one value per round. In pairs, the first is of Keelway and the second of plain processes.
#[derive(Default)]
struct Figures {
    /// Time until `/readyz` responds through the ingress, in seconds.
    ready: [Vec<f64>; 2],
    /// Time until `/readyz` responds through the ingress when the cluster wakes up, compared with its first start, in seconds.
    woken: [Vec<f64>; 2],
    /// Time until `reconcile` exits, in seconds.
    settled: Vec<f64>,
    /// Memory of etcd and the Kubernetes programs, in MiB.
    memory: [Vec<f64>; 2],
    /// Memory of everything that runs for the cluster, compared with etcd and the Kubernetes programs alone, in MiB.
    total: [Vec<f64>; 2],
    /// Time from the end of an API server until it serves again, in seconds.
    again: [Vec<f64>; 2],
    /// Time of a pass that has nothing to do, in milliseconds.
    pass: Vec<f64>,
    processor: Vec<f64>,
}

fn main() {
    on_own_host("start", || {
        let rounds = env::var("KEELWAY_BENCH_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
        let table = measure(rounds);
        println!("{table}");
        if let Some(page) = env::var_os("KEELWAY_BENCH_PAGE") {
            table::write_into(Path::new(&page), "start", &table);
        }
    });
}

fn measure(rounds: usize) -> String {
    let sizes = [Size { replicas: 1, ingresses: 1 }, Size { replicas: 3, ingresses: 2 }];
    let mut figures = sizes.each_ref().map(|_| Figures::default());
    let mut world = TestFleet::new("e2ebst");
    let made = world.create(|keelway, fleet| {
        let machines = ["--public", "2", "--private", "3", "--agent"];
        keelway.run(&[&["hypervisor", "local", "create", "--fleet", fleet], &machines[..]].concat(), &[])
    });
    // The first round imports images and is not counted.
    for round in 0..=rounds {
        for (size, figures) in sizes.iter().zip(&mut figures) {
            let started = Instant::now();
            let mut seen = Figures::default();
            size.round(&world, &made, Path::new(DIRECTORY), &mut seen);
            println!("round {round} of {size:?}, {:.1} s: {seen}", started.elapsed().as_secs_f32());
            if round > 0 {
                figures.extend(seen);
            }
        }
    }
    fs::remove_dir_all(DIRECTORY).unwrap();
    drop(world);
    report(rounds, &figures, &agent::measure())
}

impl Figures {
    fn extend(&mut self, other: Self) {
        let pairs = [
            (&mut self.ready, other.ready),
            (&mut self.woken, other.woken),
            (&mut self.memory, other.memory),
            (&mut self.total, other.total),
            (&mut self.again, other.again),
        ];
        for (mine, theirs) in pairs {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.extend(theirs));
        }
        self.settled.extend(other.settled);
        self.pass.extend(other.pass);
        self.processor.extend(other.processor);
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ready, woken, settled, memory, total, again, pass, processor } = self;
        write!(
            f,
            "ready {ready:.2?} woken {woken:.2?} settled {settled:.2?} s, memory {memory:.1?} total {total:.1?} MiB, again {again:.2?} s, \
             pass {pass:.1?} ms, processor {processor:.1?} ms"
        )
    }
}

fn report(rounds: usize, [one, three]: &[Figures; 2], agent: &agent::Figures) -> String {
    let mut table = Table::new("start", rounds);
    let beside = "the same programs as plain processes";
    table.ratio(
        &format!(
            "one replica: from `reconcile` to `/readyz` through the ingress, beside {beside} with their keys on disk"
        ),
        "s",
        &one.ready,
        1.3,
    );
    table.shown("the same until `reconcile` ends, all components being well", "s", &one.settled);
    table.ratio(
        "three replicas on three machines behind two ingresses, beside all the plain processes started at once",
        "s",
        &three.ready,
        1.5,
    );
    table.shown("the same until `reconcile` ends", "s", &three.settled);
    for (figures, replicas) in [(one, "one replica"), (three, "three replicas")] {
        let what = format!(
            "{replicas}, of a cluster that sleeps: from `reconcile` after `cluster wake` to `/readyz` through the ingress, beside \
             its first start"
        );
        table.ratio(&what, "s", &figures.woken, 1.1);
    }
    table.under("settled `reconcile` over that cluster, process and all", "ms", &three.pass, 100.0);
    table.under("CPU time of it", "ms", &three.processor, 20.0);
    table.ratio(
        &format!(
            "one replica, {} s after `/readyz`: anonymous and kernel memory of etcd, kube-apiserver, \
             kube-controller-manager and kube-scheduler, beside these four as plain processes that keep the same objects \
             for the same clients",
            AGE.as_secs()
        ),
        "MiB",
        &one.memory,
        1.05,
    );
    table.ratio(
        "all that runs for that cluster (the four, haproxy, gateway, egress, cluster-controller, pauses and shims), beside \
         the four plain processes alone",
        "MiB",
        &one.total,
        1.25,
    );
    table.difference(
        "API server killed until its `/readyz`, started again by the agent, beside the plain process started by hand",
        "s",
        &one.again,
        0.5,
    );
    agent.report(&mut table);
    table.finish()
}
