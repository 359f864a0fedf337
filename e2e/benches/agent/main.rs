//! Measures calls to a container runtime through the agent over a network, and the cost of many agents for their driver:
//! `KEELWAY_BENCH_ROUNDS=7 cargo bench -p keelway-e2e --bench agent`. It needs what live tests need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

mod cri;
mod fleet;
#[path = "../start/table.rs"]
#[expect(dead_code, reason = "the other benchmarks have other kinds of rows")]
mod table;

use std::{env, path::Path};

use keelway_e2e::host::on_own_host;
use table::Table;

/// The number of rounds if `$KEELWAY_BENCH_ROUNDS` is not set.
const ROUNDS: usize = 7;

fn main() {
    on_own_host("agent", || {
        let rounds = env::var("KEELWAY_BENCH_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
        let mut table = Table::new("agent", rounds);
        cri::measure(rounds, &mut table);
        fleet::measure(rounds, &mut table);
        let table = table.finish();
        println!("{table}");
        if let Some(page) = env::var_os("KEELWAY_BENCH_PAGE") {
            table::write_into(Path::new(&page), "agent", &table);
        }
    });
}
