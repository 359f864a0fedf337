//! Measures a fleet: real etcd and kube-apiserver, the fleet-controller and the fleet agents as they ship. One more real API server plays all
//! workload clusters: `KEELWAY_BENCH_ROUNDS=1 cargo bench -p keelway-e2e --bench fleet`. It needs what live tests need.
//!
//! Each time is compared with the same writes that a client makes directly in the same run: to the fleet's API, and to the workload cluster's.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

mod arrivals;
mod bench_fleet;
mod direct;
#[path = "../manager/host.rs"]
mod host;
mod measure;
#[expect(dead_code, reason = "the tests of the agent use the rest")]
#[path = "../../../fleet-agent/tests/fleet_live/plane.rs"]
mod plane;
mod programs;
#[path = "../start/table.rs"]
#[expect(dead_code, reason = "the other benchmarks have other kinds of rows")]
mod table;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use std::{env, fs, path::Path};

use keelway_e2e::host::on_own_host;
use measure::FleetSizes;
use table::Table;

/// How long the certificates of agents are valid, so that none is renewed while something is measured.
const SIGNED: &str = "24h";
/// The machine is quiet at the start if its load average is below this.
const QUIET: f64 = 1.0;

fn main() {
    on_own_host("fleet", || {
        let load = load();
        let rounds = env::var("KEELWAY_BENCH_ROUNDS").map_or(1, |text| text.parse().unwrap());
        let sizes = FleetSizes {
            clusters: numbers("KEELWAY_BENCH_CLUSTERS", &[10, 100, 200]),
            objects: numbers("KEELWAY_BENCH_OBJECTS", &[1000, 5000]),
        };
        let mut table = Table::new("fleet", rounds);
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        executor.block_on(measure::measure(rounds, &sizes, &mut table));
        let table = table.finish();
        println!("{table}");
        match env::var_os("KEELWAY_BENCH_PAGE") {
            Some(page) if load < QUIET => table::write_into(Path::new(&page), "fleet", &table),
            Some(_) => println!(
                "the table is not written: the load average at the start was {load}, and must be below {QUIET}"
            ),
            None => {}
        }
    });
}

fn numbers(name: &str, otherwise: &[usize]) -> Vec<usize> {
    let Ok(text) = env::var(name) else { return otherwise.to_vec() };
    text.split(',').map(|number| number.parse().unwrap()).collect()
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(f64::INFINITY)
}
