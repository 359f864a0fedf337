//! The types of Keelway: resource types, documents, names, releases, roles, machine configs. No IO.

mod across;
pub mod allowed_sink;
pub mod argument;
pub mod change;
pub mod class;
mod class_status;
pub mod cluster;
mod cluster_class;
pub mod component;
pub mod condition;
mod condition_changes;
pub mod crd;
pub mod document;
mod document_changes;
mod document_text;
pub mod documents;
pub mod duration;
pub mod entries;
pub mod event;
pub mod explain;
pub mod fault;
pub mod hypervisor;
pub mod image_override;
mod kind;
pub mod machine;
pub mod membership;
pub mod name;
pub mod newer;
mod observation;
mod origin;
pub mod preflight;
pub mod quantity;
mod read;
pub mod registry;
pub mod release;
pub mod reserved;
pub mod resources;
pub mod restore;
pub mod role;
pub mod rotation;
mod schema;
mod schemas;
pub mod secret;
mod secret_name;
pub mod shared;
pub mod sleep;
pub mod snapshots;
mod split;
pub mod store_observation;
pub mod store_rebuild;
pub mod store_space;
mod tree;
pub mod validated;
pub mod worker;
mod write;

pub use class::ClusterClass;
pub use cluster::Cluster;
pub use component::Component;
pub use documents::Documents;
pub use hypervisor::Hypervisor;
pub use k8s_openapi::{
    ByteString,
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time},
    jiff,
};
pub use newer::Newer;
pub use observation::{ComponentHealth, Observation};
pub use read::{KeyCheck, ReadOptions, UnknownFields, vpn_range::keep_vpn_range};
pub use secret::Secret;
pub use shared::Shared;
