//! Measures the cost and speed of the manager. Its store is a real API server. Its agents have the fake runtime behind the real protocol, each in a
//! network of its own, with servers that respond in place of the programs of control planes:
//! `KEELWAY_BENCH_ROUNDS=1 cargo bench -p keelway-e2e --bench manager`. It needs what live tests need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

mod config;
mod effects;
mod fleet;
mod host;
mod machine;
mod manager;
mod measure;
mod network;
mod objects;
#[expect(dead_code, reason = "a control plane of another crate's tests, of which only the API is used here")]
#[path = "../../../cluster-controller/tests/live/plane.rs"]
mod plane;
mod shares;
#[path = "../start/table.rs"]
#[expect(dead_code, reason = "the other benchmarks have other kinds of rows")]
mod table;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use std::{env, path::Path};

use keelway_e2e::host::on_own_host;
use measure::measure;
use table::Table;

/// All machines run in this process and would contend for the locks of the system's allocator. Agents that run in processes of their own do not
/// contend. Like the allocator of agents, this one requests no huge pages.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The number of rounds if `$KEELWAY_BENCH_ROUNDS` is not set.
const ROUNDS: usize = 1;
/// The final number of clusters if `$KEELWAY_BENCH_CLUSTERS` is not set.
const CLUSTERS: usize = 1000;

fn main() {
    on_own_host("manager", || {
        let number = |name, otherwise| env::var(name).map_or(otherwise, |text| text.parse::<usize>().unwrap());
        let (rounds, clusters) = (number("KEELWAY_BENCH_ROUNDS", ROUNDS), number("KEELWAY_BENCH_CLUSTERS", CLUSTERS));
        let mut table = Table::new("manager", rounds);
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        executor.block_on(measure(rounds, clusters, &mut table));
        let table = table.finish();
        println!("{table}");
        if let Some(page) = env::var_os("KEELWAY_BENCH_PAGE") {
            table::write_into(Path::new(&page), "manager", &table);
        }
    });
}
