//! What the manager takes, and how fast it is: a real API server as its store, and agents with the fake runtime behind the real protocol, each
//! in a network of its own, with programs that answer where those of control planes would.
//! `KEELWAY_BENCH_ROUNDS=1 cargo bench -p keelway-e2e --bench manager`. Needs what live tests need.

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

/// All machines are in this process: what each agent would have of its own, the system's allocator makes them wait for. Theirs asks for no
/// huge pages either.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Rounds where `$KEELWAY_BENCH_ROUNDS` does not say how many.
const ROUNDS: usize = 1;
/// Clusters in the end, where `$KEELWAY_BENCH_CLUSTERS` does not say how many.
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
