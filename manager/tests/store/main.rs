//! Stores, and what people ask of them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod contract;
mod directory;
mod pivot;
mod place;
mod server;
