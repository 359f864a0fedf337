//! Local hypervisors: the fast way to try Keelway.
//!
//! A [`Fleet`] is a set of machines on this host. [`create`] creates it, and [`destroy`] removes it. Each machine is a network namespace with a
//! containerd, a state, a mount namespace, a host name and a cgroup of its own. Programs in it see a machine: `/run`, `/var/lib` and
//! `/var/log` are the machine's own, and containerd has its usual paths.
//!
//! ```text
//!  host ── kw-FLEET ──┐                       the client: it has a route to the public network only
//!                 [ public ]  [ private ]     two bridges without addresses, in the fleet's own network namespace
//!                     │  └──────┐  │  └───┐
//!                 public-1 ─────┼──┘      │   both networks
//!                           public-2 ..   private-1 ..  the private network only
//! ```
//!
//! Workers ([`create_worker`]) are machines in the public network, or behind NATs in it.
//!
//! No state is kept in memory: every call reads from the host what exists, and therefore continues where an interrupted one stopped.

mod agent;
mod cgroup;
mod config;
mod containerd;
mod create;
mod destroy;
mod document;
mod enroll;
mod error;
mod files;
mod fleet;
mod ip;
mod launch;
mod layout;
mod lock;
mod mounts;
mod namespace;
mod network;
mod power;
mod prepared_images;
mod processes;
mod progress;
mod record;
mod service;
mod tools;
mod user;
mod wiring;
mod worker;

pub use agent::AgentProgram;
pub use create::{CreateRequest, create};
pub use destroy::{destroy, destroy_machines};
pub use document::{FLEET_LABEL, ZONE_LABEL, fleets, list};
pub use enroll::{LocalAgentIdentity, enroll};
pub use error::LocalHypervisorError;
pub use fleet::Fleet;
pub use launch::{Launcher, run_machine};
pub use power::{PowerState, power};
pub use progress::{FleetProgress, FleetStep};
pub use tools::{MissingProgram, ProgramSearch};
pub use worker::{
    LinkState, WorkerMachine, WorkerRequest, WorkersRequest, create_worker, destroy_workers, enter_worker, forget,
    link_workers, power_workers, renumber, workers,
};
