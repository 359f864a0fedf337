//! The controller of a fleet. It runs beside the fleet's API servers, and one replica of it works at a time.
//!
//! It registers workload clusters ([`registration`]), observes their agents ([`heartbeat`]), and turns policies into Placements and Works
//! ([`placement`]). Deciding is pure: `registration/decision.rs`, `heartbeat.rs`, and `keelway_fleet`.

mod cluster_reconciler;
mod cluster_removal;
mod configuration;
mod context;
mod definitions;
pub mod heartbeat;
mod host;
mod metrics;
pub mod placement;
pub mod registration;
pub mod removal_step;
mod run;

pub use self::{
    configuration::FleetControllerConfiguration,
    context::FleetControllerError,
    host::{FleetHost, FleetHostError},
    metrics::FleetMetrics,
    run::{FleetControllerOptions, FleetControllerRunError, run},
};
