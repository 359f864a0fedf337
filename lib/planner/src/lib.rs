//! Decides: documents and an observation in, a plan out.
//!
//! The crate does no IO and is `no_std`, so it cannot name a file, clock, environment, thread or unordered map.
//! A pass calls, in this order: [`identify`], [`probes`] and [`plan`], and, once keys are minted, [`configure`] and [`plan_progress`].
#![no_std]

extern crate alloc;

mod access;
mod authorities;
mod bundles;
mod certificates;
mod class;
mod clocks;
mod config;
mod config_check;
mod deletion;
mod draining;
mod enrollment;
mod etcd_ids;
mod fleet;
mod gateways;
mod identify;
mod installation;
pub mod invariants;
mod machine_deletion;
mod mint;
mod minted;
mod newer;
mod observation;
mod placement;
mod placement_choice;
mod plan;
mod pod;
mod ports;
mod probe;
mod progress;
mod recover;
mod refusal;
mod replacement_turns;
mod retirement;
mod status;
mod store_creation;
mod store_room;
mod tenant;
mod term;
mod text;
mod versions;
mod waves;
mod world;

pub use access::{
    ADMIN_GROUP, BINDINGS_DIGEST, ClusterAccess, OWNER, access, administrator, bindings_digest, driver_identity,
    first_administrator, first_bindings,
};
pub use certificates::{
    API_SERVER_NAME, DRIVER_SECRET, KUBERNETES as KUBERNETES_AUTHORITY, SecretContents, WIREGUARD, holds,
};
pub use clocks::{MOST_SKEW, wait_for_clock};
pub use config::{Configs, DesiredPods, configure, machine_config, machine_configs, note_issued};
pub use config_check::check_config;
pub use enrollment::{AgentOrder, ENROLLMENT_EXPIRES, ENROLLMENT_TOKEN, enrollment_secret};
pub use identify::{identify, identify_clusters, identify_machines};
pub use installation::{
    REVOCATION_LIST, REVOKED, REVOKED_SERIALS, agent_grant, agent_identity, installation_authority,
    installation_certificates, installation_driver, installation_revoked,
};
pub use mint::{CertificateSubject, MintRequest};
pub use observation::{CertificateSeen, ComponentHealth, ObservedCertificates, PassObservation};
pub use plan::{Connections, Decision, Neighbours, Plan, PlanScope, WaitKind, Waiting, plan, plan_part};
pub use pod::MissingKey;
pub use probe::{CertificateReference, HealthWitness, Probe, ProbeTls, probes};
pub use progress::plan_progress;
pub use recover::{DifferenceKind, HeldConfig, HeldMachine, Recovery, RecoveryDifference, Remedy, recover};
pub use refusal::{MachineRefusal, later_leader_text, refusal, refuse};
pub use term::{HIGHEST_NUMBER, HIGHEST_TOLD_TERM, majority_term, next_term, term_alone, term_of_documents};
pub use waves::{Waves, WavesError};
pub use world::{ValidatedDocuments, have_the_same_machines};
