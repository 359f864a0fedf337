//! The programs for the workers of a cluster: its controller, its gateway, and the egress of its API servers.

mod connect;
mod connects;
pub mod controller;
pub mod egress;
pub mod gateway;

pub use keelway_tls::{TlsError, TlsFiles};
