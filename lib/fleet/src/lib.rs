//! A fleet, decided: kinds, policies, placements, and what becomes of them in each workload cluster.
//!
//! The crate does no IO, and it uses nothing of `std` that is not in `core` and `alloc`: no file, clock, environment, thread or unordered map. The
//! definitions of kinds are derived with paths of `std`, so `hack/rules.sh` checks this instead of `no_std`.

extern crate alloc;

mod activity;
mod agent_manifests;
mod amounts;
mod arrival;
pub mod bootstrap;
mod candidate;
mod capacity;
mod capacity_ledger;
mod cluster;
mod cluster_location;
mod crds;
mod decide;
mod divide;
mod explain;
mod failover;
mod field_path;
mod fit;
pub mod invariants;
mod keep;
mod leave;
mod manifest;
pub mod names;
mod node_inventory;
mod node_needs;
mod nodes;
mod object;
mod placed_kind;
mod placement;
mod pod_demand;
mod pod_kinds;
mod pod_requests;
mod policies;
mod policy;
mod policy_change;
mod quantity;
mod readiness;
mod role;
mod room;
mod scope;
mod selector;
mod status;
mod target_label;
pub mod token;
mod toleration;
mod verdict;
mod work;
mod works;

pub use candidate::{CandidateCluster, ScoreStep};

pub use activity::{ClusterActivity, ContentRole};
pub use agent_manifests::{AgentRights, PLACED_RESOURCES, agent_manifests, agent_rules};
pub use amounts::ResourceAmounts;
pub use arrival::{PlacementDemands, uncounted_pods};
pub use capacity::{CapacityReport, NodeGroup, NodeRooms};
pub use capacity_ledger::CapacityLedger;
pub use cluster::{
    CLUSTER_IDLE, CLUSTER_READY, CLUSTER_STANDBY, ClusterDrain, ClusterTaint, TaintEffect, WorkloadCluster,
    WorkloadClusterSpec, WorkloadClusterStatus,
};
pub use cluster_location::{ClusterLocation, is_label_value};
pub use crds::{RefusedPolicy, crds, refused_policies};
pub use decide::{DecisionRequest, FleetState, KeepReason, PlacementDecision, PlacementOutcome, decide};
pub use divide::{DivisionPart, divide};
pub use explain::{ClusterExplanation, PlacementExplanation};
pub use failover::FleetClock;
pub use field_path::{FieldPath, FieldPathError};
pub use fit::RoomShortage;
pub use keelway_pki::BootstrapToken;
pub use leave::{LeaveCause, MoveObstacle};
pub use manifest::{ApplyOrder, MAX_MANIFEST_BYTES, ManifestError, apply_order, manifest_for};
pub use node_inventory::{InventoryNode, capacity_report};
pub use nodes::{ResourceQuantities, WorkloadTaint, total};
pub use object::{FleetObject, FleetObjectError, ObjectState};
pub use placed_kind::PlacedKind;
pub use placement::{
    PLACEMENT_APPLIED, PLACEMENT_MOVING, PLACEMENT_SCHEDULED, PlacedCluster, PlacedClusterStatus, PlacementReason,
    PlacementSpec, PlacementStatus, WorkloadPlacement, WorkloadRef,
};
pub use pod_demand::{ObjectDemand, PodCount, PodDemand};
pub use pod_kinds::{PodKindError, PodKinds, PodSource};
pub use pod_requests::pod_requests;
pub use policies::{PolicyError, PolicySet, UnknownPolicy};
pub use policy::{
    ConflictResolution, DriftPolicy, FailoverPolicy, FailoverRecovery, FieldOverride, KindSelector,
    OrderedClusterSelector, OrderedOperator, OrderedValues, OverrideValue, PercentageShare, ResourceOverride,
    ResourceSelectors, SchedulePolicy, SchedulePolicySpec, SpreadConstraints, SpreadMode, TopologyOverrides,
};
pub use policy_change::{DecidedPlacement, FleetDocuments, PlacementChange};
pub use readiness::PodReadiness;
pub use role::{FLEET_CONTROLLER_ROLE, fleet_controller_role};
pub use room::ClusterRoom;
pub use scope::is_placeable;
pub use status::{ClusterReport, merged_status, object_status, placement_status};
pub use target_label::TargetLabel;
pub use token::{FleetToken, FleetTokenError};
pub use toleration::{ClusterToleration, TolerationOperator};
pub use verdict::{PlacementVerdict, Rejection, RunReason};
pub use work::{PlacementLink, ReplicasOwner, WORK_APPLIED, Work, WorkSpec, WorkStatus};
pub use works::{
    DesiredWork, ExistingWork, WorkOrder, WorkPlan, WorkRemoval, WorkWait, desired_works, placement_link, plan_works,
};
