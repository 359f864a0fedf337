//! Serves a runtime to clients that are not on its machine: calls, streams and events.

pub mod connection;
pub mod fanout;
pub mod follow;
pub mod passthrough;
pub mod splice;
pub mod streams;
