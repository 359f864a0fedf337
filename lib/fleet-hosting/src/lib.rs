//! The control plane of a fleet as manifests for a Kubernetes cluster.
//!
//! The pods are those of `keelway_planner::hosted_fleet`, from the templates of hypervisors. This crate turns them into Kubernetes objects
//! ([`manifests`]), and keeps the documents of the fleet in a Secret ([`FleetRecord`]). It does no IO, and it mints nothing.

mod documents;
mod metadata;
mod objects;
mod options;
mod pod_spec;
mod record;
mod workloads;

pub use self::{
    documents::{FleetDocumentsError, fleet_documents},
    objects::{manifests, service_manifests},
    options::{ApiEndpoint, ApiEndpointError, ApiService, HostingOptions, ServiceType},
    record::{FleetRecord, FleetRecordError},
};
