//! A worker: joining a machine with containerd to a cluster, the daemon that runs on it, and leaving the cluster.
//!
//! Decisions are separate from actions: [`checks`] turns facts of the machine into faults, and `tunnels::choice` selects the gateway.

mod api;
mod authority;
mod balancer;
mod certificate;
mod cgroups;
mod changes;
pub mod checks;
mod cni;
mod daemon;
mod deleted_node;
mod facts;
mod files;
mod firewall;
mod foreign_drops;
mod former_ranges;
mod forwarders;
mod forwarding;
mod image;
mod information;
#[cfg(test)]
mod isolated;
mod join;
mod kubelet;
mod leave;
mod lock;
mod logs;
mod memory;
mod mounts;
mod network_condition;
mod node_event;
mod node_labels;
mod node_record;
mod open_ports;
mod peer;
mod process;
mod program;
mod reachable;
mod registration;
mod removal;
#[cfg(test)]
mod samples;
mod service;
mod settings;
mod status;
mod sysctl;
mod token;
mod tunnels;
mod undo;

pub use api::{ApiError, ENDED};
pub use authority::EndpointError;
pub use certificate::KubeletCertificateError;
pub use daemon::{DaemonError, run};
pub use files::NodeFileError;
pub use firewall::FirewallError;
pub use forwarding::ForwardingError;
pub use image::ImageError;
pub use information::InformationError;
pub use join::{JoinError, JoinOptions, JoinStep, join};
pub use leave::{LeaveError, LeaveOptions, LeaveStep, leave};
pub use lock::{WorkerLock, WorkerLockError, acquire};
pub use memory::disable_huge_pages;
pub use node_labels::is_kubelet_label;
pub use open_ports::{OpenPorts, OpenPortsFault};
pub use peer::PeerError;
pub use removal::RemovalError;
pub use service::{ServiceError, has_systemd, unit};
pub use settings::{DaemonMode, INSTALL, Layout, NodeOptions, OptionChange, STATE};
pub use status::{CertificateStatus, IngressStatus, KubeletStatus, StatusError, TunnelStatus, WorkerStatus, ask};
pub use token::{TokenError, read as read_token};
pub use tunnels::TunnelError;
pub use undo::{UndoError, forget};
