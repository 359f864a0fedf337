//! The manager: reconciles documents continuously while users change them.

mod accept;
pub mod client;
pub mod directory;
mod document_paths;
pub mod fenced_machines;
pub mod health;
pub mod kubernetes;
pub mod metrics;
pub mod pivot;
pub mod proto;
mod reports;
pub mod server;
pub mod traces;

pub use reports::Reports;
