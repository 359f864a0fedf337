//! Stores, pivots between them, and requests to the socket of a manager.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod contract;
mod directory;
mod pivot;
mod place;
mod server;
