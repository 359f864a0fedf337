//! The machine's side: files, `converge()`, execution.
//!
//! [`LocalMachine`] ties it together: [`observe`](LocalMachine::observe) what is there, [`converge::converge`] to what is
//! to be done, [`execute`](LocalMachine::execute) it. The first and the last reach the machine through its CRI socket and
//! through the root and the network of the process that listens there; the one between is pure.

pub mod access;
pub mod action;
pub mod converge;
pub mod execute;
pub mod files;
pub mod image;
pub mod layout;
mod local;
pub mod observe;
pub mod refusal;
pub mod report;

pub use local::{ApplyError, ConnectError, FilesError, LocalMachine};
