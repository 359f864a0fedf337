//! Keelway's nouns: resource types, documents, names, releases, roles, machine configs. No IO.

pub mod condition;
pub mod hypervisor;
pub mod machine;
pub mod name;
