//! What clusters report to have room for, what fits there, and what is reserved.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's functions fail by panicking")]

mod arrivals;
mod choices;
mod kinds;
mod ledger;
mod reports;
mod simulated_cluster;
#[expect(dead_code, reason = "the tests of decisions use the rest")]
#[path = "../fleet_decisions/world.rs"]
mod world;
