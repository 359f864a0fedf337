//! The agent: a daemon that keeps one machine as its config requires, beside the machine's container runtime.

pub mod agent;
mod caller;
pub mod container;
pub mod enrollment;
