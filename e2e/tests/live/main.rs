//! Clusters on real machines: real containerd, etcd, Kubernetes and haproxy.
//!
//! It needs root, `runc`, `ip`, `nft`, and Keelway's cache (`make images`).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod agent;
mod bare;
mod behind;
mod crictl;
mod enrolled;
mod enrollment;
mod files;
mod fleet;
mod flood;
mod input;
mod interrupted;
mod keys;
mod kubernetes;
mod life;
mod look;
mod lost;
mod managed;
mod mixed;
mod nat;
mod one_control_plane;
mod reach;
mod reached;
mod recovery;
mod scheduled;
mod settled;
mod snapshots;
mod strangers;
mod two_clusters;
mod upgraded;
mod versions;
mod watch;
mod workers;
mod workload;
