//! One machine, done. [`LocalMachine`](local::LocalMachine) observes a machine, and executes what [`keelway_machine::converge`] plans. It reaches
//! the machine through its CRI socket, and through the root and the network of the process that listens there.

pub mod access;
pub mod execute;
pub mod fetched_images;
mod figures;
pub mod files;
pub mod haproxy;
pub mod image;
pub mod local;
pub mod logs;
pub mod observe;
mod pull;
pub mod restore;
mod socket;
pub mod unused_images;
