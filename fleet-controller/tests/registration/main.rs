//! What the controller of a fleet decides, without IO.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's functions fail by panicking")]

mod access;
mod configuration;
mod heartbeat;
mod record;
mod removal_step;
mod requests;
