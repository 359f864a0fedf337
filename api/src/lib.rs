//! Keelway's nouns: resource types, documents, names, releases, roles, machine configs. No IO.

pub mod cluster;
pub mod component;
pub mod condition;
pub mod documents;
pub mod duration;
pub mod fault;
pub mod hypervisor;
pub mod machine;
pub mod name;
pub mod release;
pub mod role;
pub mod validated;

pub use cluster::Cluster;
pub use component::Component;
pub use documents::Documents;
pub use hypervisor::Hypervisor;
pub use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
    jiff,
};
