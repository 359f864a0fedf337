//! Decides: documents and an observation in, a plan out.
//!
//! The crate does no IO and is `no_std`, so it cannot name a file, clock, environment, thread or unordered map.
//! A pass calls, in this order: [`identify`], [`probes`] and [`plan`], and, once keys are minted, [`configure`] and [`plan_progress`].
#![no_std]

extern crate alloc;

mod absent_addresses;
mod access;
mod authorities;
mod bundles;
mod certificate_subject;
mod certificates;
mod class;
mod clocks;
mod component_ref;
mod component_set;
mod config;
mod config_check;
mod deletion;
mod draining;
mod enrollment;
mod etcd_ids;
mod first_bindings;
mod fleet;
mod gateways;
mod haproxy_name;
mod hosting;
mod identify;
mod installation;
pub mod invariants;
mod keelway_upgrade;
mod machine_deletion;
mod machine_refusal;
mod membership;
mod mint;
mod minted;
mod newer;
mod observation;
mod placement;
mod placement_choice;
mod placement_error;
mod plan;
mod pod;
mod ports;
mod preflight;
mod probe;
mod progress;
mod rebuild;
mod recover;
mod refusal;
mod replacement_turns;
mod restore;
mod retirement;
mod rotation;
mod secret_names;
mod sleep;
mod snapshots;
mod status;
mod steps;
mod store_creation;
mod store_health;
#[cfg(feature = "testing")]
pub mod store_model;
mod store_observation;
mod store_order;
mod store_queries;
mod store_room;
mod store_space;
mod store_start;
mod tenant;
mod term;
mod text;
#[cfg(feature = "testing")]
pub mod trust;
mod upgrade_order;
mod verdict;
mod versions;
mod violation;
mod waiting;
mod waves;
mod world;

pub use access::{
    ADMIN_GROUP, BINDINGS_DIGEST, ClusterAccess, OWNER, access, administrator, driver_identity, first_administrator,
};
pub use clocks::{MOST_SKEW, wait_for_clock};
pub use component_ref::ComponentRef;
pub use config::{Configs, DesiredPods, configure, machine_config, machine_configs, note_issued};
pub use config_check::check_config;
pub use enrollment::{ENROLLMENT_EXPIRES, ENROLLMENT_TOKEN, enrollment_secret};
pub use first_bindings::FirstBindings;
pub use hosting::{
    API_SERVICE, HostedFleet, HostedPod, HostingError, HostingNamespace, STORE_SERVICE, hosted_fleet, hosted_requests,
    record_minted,
};
pub use identify::{identify, identify_clusters, identify_machines};
pub use installation::{
    REVOCATION_LIST, REVOKED, REVOKED_SERIALS, agent_grant, agent_identity, installation_authority,
    installation_certificates, installation_driver, installation_revoked,
};
pub use machine_refusal::{MachineRefusal, later_leader_text};
pub use membership::{OutdatedServers, changes_members};
pub use mint::{AuthorityGeneration, CertificateSubject, MintRequest};
pub use minted::UnusableReason;
pub use observation::{
    CertificateSeen, ComponentHealth, ObservedCertificates, ObservedTrust, PassObservation, SecretRewrite,
};
pub use placement_error::{MissingMachine, PlacementError, RemainingCapacity, Shortened};
pub use plan::{AgentOrder, Connections, Decision, Neighbours, Plan, PlanScope};
pub use pod::MissingKey;
pub use preflight::{
    DeprecatedApi, PreflightBlocker, PreflightFinding, SilentWebhook, UpgradePreflight, begins_minor_upgrade,
};
pub use probe::{CertificateReference, HealthWitness, Probe, ProbeTls, probes};
pub use progress::plan_progress;
pub use rebuild::RecoveryBlocker;
pub use recover::{
    CompletedDocuments, DifferenceKind, HeldConfig, HeldMachine, Recovery, RecoveryDifference, Remedy, UnclearReason,
    complete_clusters, complete_from_backup, keep_replicas, recover,
};
pub use refusal::{refusal, refuse};
pub use restore::{DataRestoration, RestorableSnapshot, RestoreBlocker, data_restoration};
pub use rotation::{RotationBlocker, TrustHolder, follows_trust, rewrites_secrets};
pub use secret_names::{
    API_SERVER_NAME, DRIVER_SECRET, KUBERNETES as KUBERNETES_AUTHORITY, SecretContents, WIREGUARD, holds,
};
pub use sleep::SleepBlocker;
pub use snapshots::{is_snapshot_due, next_snapshot, record_snapshot, snapshot_due_since};
pub use steps::{plan, plan_part};
pub use store_health::lag;
pub use store_observation::{
    DatabaseSize, ListedMember, MemberAlarm, MemberId, MemberList, MemberReport, StoreObservation,
};
pub use store_order::StoreOrder;
pub use store_queries::{has_store, needs_store};
pub use term::{HIGHEST_NUMBER, HIGHEST_TOLD_TERM, majority_term, next_term, term_alone, term_of_documents};
pub use upgrade_order::{UpgradeOrder, upgrade_orders};
pub use waiting::{UnclearCorruption, WaitBlocker, WaitKind, WaitSubject, Waiting};
pub use waves::{Waves, WavesError};
pub use world::{ValidatedDocuments, have_the_same_machines};
