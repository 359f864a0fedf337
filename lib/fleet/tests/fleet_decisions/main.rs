//! Decisions of a fleet: where objects run, their Works, and their statuses.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's functions fail by panicking")]

mod conformance;
mod delegation;
mod drains;
mod failovers;
mod holds;
mod keeping;
mod manifests;
mod orders;
mod policy_changes;
mod properties;
mod readiness;
mod simulation;
mod simulator;
mod statuses;
mod world;
