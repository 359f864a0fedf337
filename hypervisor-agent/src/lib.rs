//! The machine's side of Keelway: files, `converge()`, execution.
//!
//! [`LocalMachine`] combines them: [`observe`](LocalMachine::observe) reads the state, [`converge::converge`] plans actions, and
//! [`execute`](LocalMachine::execute) executes them. The first and the last reach the machine through its CRI socket, and through the root and the
//! network of the process that listens there. Planning is pure.

pub mod access;
pub mod action;
pub mod agent;
mod caller;
pub mod client;
mod connection;
pub mod converge;
mod cri_passthrough;
pub mod enrollment;
pub mod execute;
mod fanout;
mod fetched_images;
mod figures;
pub mod files;
mod haproxy;
pub mod helper;
pub mod https;
pub mod image;
pub mod layout;
pub mod leader;
mod local;
pub mod logs;
pub mod look_interval;
pub mod machine_io;
pub mod observe;
mod proto;
mod pull;
pub mod reach;
pub mod refusal;
mod relay;
pub mod report;
mod socket;
mod splice;
mod streams;
pub mod supervise;
pub mod tls;
mod unused_images;
pub mod wire;

pub use connection::MachineConnection;
pub use haproxy::HaproxyError;
pub use local::{ApplyError, ConnectError, FilesError, LocalMachine, Machine};
