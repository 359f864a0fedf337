//! A simulated fleet under the real planner, the real pass and the real core of a machine.
//!
//! Machines, their runtimes and disks, what runs on them, the store of documents and the clock are simulated; what decides
//! and what puts effects in order is not. Everything that happens in a run, its time included, follows from one number, the
//! seed: [`live`] runs one. Rules are checked at every step (`rules.rs`); a run ends with a time without faults, in which the
//! world must come to rest.

mod agents;
mod bug;
mod components;
mod contracted;
mod disk;
mod error;
mod fault;
mod life;
mod machine;
mod machines;
mod minter;
mod person;
mod program;
mod random;
mod rules;
mod runtime;
mod scenario;
mod sim;
mod store;
mod weather;
mod world;

pub use bug::Bug;
pub use contracted::SimulatedMachine;
pub use fault::{Cell, Fault, Step, Table, cells, impossible, seeds_for};
#[cfg(feature = "planted-bugs")]
pub use life::live_with;
pub use life::{Life, live};
pub use person::{Deed, Deeds};
pub use world::{Broken, Counts};
