//! The programs for the workers of a cluster: its controller, its gateway, and the egress of its API servers.

mod configuration;
mod connect;
mod connects;
pub mod controller;
pub mod egress;
pub mod gateway;
mod health;
mod kubeconfig;
mod tasks;

pub use self::configuration::{ConfigurationError, FieldFault};
pub use self::health::HealthServerError;
pub use self::tasks::TaskError;
pub use keelway_tls::{TlsError, TlsFiles};
