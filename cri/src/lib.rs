//! CRI client, and a fake runtime that passes the same contract.
//!
//! [`Runtime`] speaks `runtime.v1` to a container runtime. What is asked for are plain structs ([`SandboxSpec`],
//! [`ContainerSpec`]), what comes back are others ([`Sandbox`], [`Container`], [`ContainerStatus`]); the wire types
//! stay inside. Every call has a deadline ([`Deadlines`]), and every [`Error`] says of what kind it is.
//!
//! [`images`] imports an image archive over containerd's own API, which CRI lacks.
//!
//! The feature `fake` adds a runtime in memory, `testing` private containerds for live tests.

mod deadlines;
mod error;
mod events;
pub mod exec;
#[cfg(feature = "fake")]
pub mod fake;
pub mod images;
mod runtime;
mod seen;
mod spec;
#[cfg(feature = "testing")]
pub mod testing;
mod wire;

pub use deadlines::Deadlines;
pub use error::{Answer, Error, Operation};
pub use events::{Event, EventKind, Events, Notice};
pub use runtime::{Login, Runtime};
pub use seen::{
    CgroupDriver, Condition, Container, ContainerState, ContainerStatus, ExecOutput, Exit, Image, RuntimeStatus,
    Sandbox, SandboxState, Usage, Version,
};
pub use spec::{ContainerSpec, Mount, Resources, SandboxSpec};
