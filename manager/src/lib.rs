//! The manager: passes for as long as it runs, over documents that change under it.

pub mod directory;
mod reports;

pub use reports::Reports;
