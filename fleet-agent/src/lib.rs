//! The agent of a fleet in a workload cluster.
//!
//! It dials out to the fleet's API and to the API of its own cluster, and nothing dials in. [`decision`] decides, without IO. Everything else
//! observes, carries out and reports.

mod authorities;
pub mod decision;
mod engine;
mod fleet;
mod health;
mod heartbeat;
mod identity;
mod inventory;
mod kind_watch;
pub mod manifest;
mod metrics;
mod node_cache;
pub mod ownership;
mod reconcile;
pub mod record_store;
mod refusal;
pub mod report_pace;
mod reports;
mod run;
mod tracking;
pub mod work_queue;
mod workload_api;
mod works;

pub use self::{
    fleet::FleetError,
    health::{HealthAddresses, HealthError, InvalidHealthAddress},
    identity::IdentityError,
    metrics::{AgentMetrics, WorkState},
    run::{AgentOptions, AgentRunError, run},
    tracking::AgentDuties,
};
