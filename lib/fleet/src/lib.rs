//! A fleet, decided: kinds, policies, placements, and what becomes of them in each workload cluster.
//!
//! The crate does no IO, and it uses nothing of `std` that is not in `core` and `alloc`: no file, clock, environment, thread or unordered map. The
//! definitions of kinds are derived with paths of `std`, so `hack/rules.sh` checks this instead of `no_std`.

mod cluster;
mod crds;
pub mod names;
mod placement;
mod policy;
pub mod token;
mod work;

pub use cluster::{
    CLUSTER_IDLE, CLUSTER_READY, CLUSTER_STANDBY, ClusterTaint, TaintEffect, WorkloadCluster, WorkloadClusterSpec,
    WorkloadClusterStatus,
};
pub use crds::{RefusedPolicy, crds, refused_policies};
pub use keelway_pki::BootstrapToken;
pub use placement::{
    PLACEMENT_APPLIED, PLACEMENT_SCHEDULED, PlacedCluster, PlacedClusterStatus, PlacementReason, PlacementSpec,
    PlacementStatus, WorkloadPlacement, WorkloadRef,
};
pub use policy::{
    ConflictResolution, DriftPolicy, FieldOverride, KindSelector, OverrideValue, PercentageShare, ResourceOverride,
    ResourceSelectors, SchedulePolicy, SchedulePolicySpec, SpreadConstraints, SpreadMode, TopologyOverrides,
};
pub use token::{FleetToken, FleetTokenError};
pub use work::{PlacementLink, ReplicasOwner, WORK_APPLIED, Work, WorkSpec, WorkStatus};
