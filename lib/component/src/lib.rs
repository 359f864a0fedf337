//! What the programs of a control plane share: logs, signals and exit codes, files that change while a program runs, health and metrics, the
//! election of the replica that works, the strict parser of
//! certificate requests, and the write of a decision about one.

pub mod approval;
pub mod certificate_request;
pub mod configuration;
pub mod daemon;
pub mod files;
pub mod health;
pub mod kubeconfig;
pub mod leader;
pub mod requests;
pub mod tasks;
pub mod watching;
