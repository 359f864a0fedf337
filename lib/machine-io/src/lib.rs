//! One machine, done. [`LocalMachine`](local::LocalMachine) observes a machine, and executes what [`keelway_machine::converge`] plans. It reaches
//! the machine through its CRI socket, and through the root and the network of the process that listens there.
//!
//! [`helper`] does the same work on a machine without an agent whose runtime is on a network.

pub mod access;
pub mod execute;
pub mod fetched_images;
mod figures;
pub mod files;
pub mod haproxy;
pub mod helper;
pub mod image;
pub mod local;
pub mod logs;
pub mod observe;
pub mod operation;
mod pull;
mod socket;
pub mod unused_images;
