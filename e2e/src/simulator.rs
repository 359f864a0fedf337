//! A simulated fleet under the real planner, the real pass and the real core of a machine.
//!
//! Machines, their runtimes and disks, what runs on them, the store of documents and the clock are simulated; what decides
//! and what puts effects in order is not. Everything that happens in a run, its time included, follows from one number, the
//! seed: [`live`] runs one. Rules are checked at every step (`rules.rs`); a run ends with a time without faults, in which the
//! world must come to rest.

mod agents;
mod bug;
mod components;
mod contract_subject;
mod disk;
mod error;
mod fault;
mod fault_schedule;
mod fault_steps;
mod machine;
mod machines;
mod minter;
mod person;
mod program;
mod random;
mod rules;
mod run;
mod runtime;
mod scenario;
mod state;
mod store;

pub use bug::Bug;
pub use contract_subject::SimulatedMachine;
pub use fault::{Cell, FaultPoint, FaultTable, InjectedFault, cells, impossible, seeds_for};
pub use person::{PersonAction, PersonActionCounts};
#[cfg(feature = "planted-bugs")]
pub use run::simulate_with_bug;
pub use run::{SimulationReport, simulate};
pub use state::{BrokenRule, SimulationCounts};
