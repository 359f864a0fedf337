//! Live tests on real machines, and what they are made of: a [`Host`](host) of the test's own, the [`Keelway`] that people
//! run, the [`Machine`]s that it made, and looks at all of them from outside.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "what tests are made of fails by panicking, and tells its timings"
)]

pub mod contract;
pub mod control_plane;
pub mod deadline;
pub mod failpoint;
pub mod fake_machine;
pub mod found;
pub mod gap;
pub mod host;
pub mod https;
pub mod keelway;
pub mod keys;
pub mod kubectl;
pub mod listening;
pub mod load;
pub mod machine;
pub mod management;
pub mod manager;
pub mod metrics;
mod operator;
pub mod prober;
pub mod process;
pub mod proxy;
pub mod ran;
pub mod reach;
pub mod setting;
pub mod simulator;
pub mod transcript;
pub mod world;

pub use control_plane::ControlPlane;
pub use found::Found;
pub use keelway::Keelway;
pub use kubectl::Kubectl;
pub use machine::{Machine, Running};
pub use management::Management;
pub use ran::Ran;
pub use reach::Reach;
pub use world::World;
