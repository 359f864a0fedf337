//! The manager: reconciles the documents of a [store](keelway_stores) continuously while users change them.

pub mod fenced_machines;
pub mod health;
pub mod metrics;
mod reports;
pub mod server;
pub mod traces;

pub use reports::Reports;
