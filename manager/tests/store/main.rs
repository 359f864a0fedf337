//! Stores, and what people ask of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod directory;
mod place;
mod server;
