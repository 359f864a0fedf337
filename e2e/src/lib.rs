//! Live tests on real machines, and their tools: a [`host`] for each test, the [`Keelway`] program that users run, the [`TestMachine`]s that it
//! created, and functions that examine all of them from outside.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "parts of tests fail by panicking, and print their timings"
)]

pub mod command;
pub mod contract;
pub mod control_plane;
pub mod deadline;
pub mod failpoint;
pub mod fake_machine;
pub mod host;
pub mod http_proxy;
pub mod https;
pub mod interruption;
pub mod keelway;
pub mod kubectl;
pub mod leak_patterns;
pub mod linearizability;
pub mod listening;
pub mod load;
pub mod machine;
pub mod machine_facts;
pub mod management;
pub mod manager;
pub mod metrics;
mod operator;
pub mod outage;
pub mod patch_release;
pub mod plane;
pub mod prober;
pub mod process;
pub mod proxy;
pub mod reach_mode;
pub mod simulator;
pub mod test_fleet;
pub mod transcript;
pub mod worker_fleet;

pub use command::FinishedCommand;
pub use control_plane::TestControlPlane;
pub use keelway::{Keelway, program_directory};
pub use kubectl::Kubectl;
pub use machine::{RunningComponent, TestMachine};
pub use machine_facts::MachineFacts;
pub use management::Management;
pub use plane::Plane;
pub use reach_mode::ReachMode;
pub use test_fleet::TestFleet;
