//! A simulated fleet under the real planner, the real pass and the real core of the agent.
//!
//! Machines, their runtimes and disks, components, the store of documents and the clock are simulated. The code that decides and the code that
//! orders effects are real. Everything in a run, including its time, is determined by one number, the seed: [`simulate`] runs one. Rules are checked
//! at every step (`rules.rs`). A run ends with a period without faults, in which the fleet must settle.

mod agents;
mod bug;
mod components;
mod contract_subject;
mod disk;
mod error;
mod fault;
mod fault_schedule;
mod fault_steps;
mod immediate_rotations;
mod losses;
mod machine;
mod machines;
mod members;
mod minter;
mod person;
mod program;
mod random;
mod restores;
mod rollout_bugs;
mod rollout_rules;
mod rollouts;
mod rules;
mod run;
mod runtime;
mod scenario;
mod sleep_bugs;
mod sleeps;
mod space;
mod state;
mod store;
mod stored_secrets;
mod workers;

pub use bug::Bug;
pub use contract_subject::SimulatedMachine;
pub use fault::{Cell, FaultPoint, FaultTable, InjectedFault, cells, impossible, seeds_for};
pub use person::{PersonAction, PersonActionCounts};
pub use rollout_bugs::RolloutBug;
#[cfg(feature = "planted-bugs")]
pub use run::simulate_with_bug;
pub use run::{SimulationReport, simulate};
pub use sleep_bugs::SleepBug;
pub use state::{BrokenRule, SimulationCounts};
