//! CRI client, and a fake runtime that passes the same contract.
//!
//! [`CriRuntime`] speaks `runtime.v1` to a container runtime. What is asked for are plain structs ([`SandboxSpec`],
//! [`ContainerSpec`]), what comes back are others ([`CriSandbox`], [`CriContainer`], [`ContainerStatus`]); the wire types
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
mod observed;
mod runtime;
mod spec;
#[cfg(feature = "testing")]
pub mod testing;
mod wire;

pub use deadlines::Deadlines;
pub use error::{CriError, GrpcStatus, Operation};
pub use events::{CriEvent, EventKind, EventMessage, EventSubscription};
pub use observed::{
    Condition, ContainerStatus, ContainerUsage, CriCgroupDriver, CriContainer, CriContainerState, CriImage, CriSandbox,
    CriSandboxState, ExecOutput, Exit, RuntimeStatus, RuntimeVersion,
};
pub use runtime::{CriRuntime, Login};
pub use spec::{ContainerSpec, CriMount, CriResources, SandboxSpec};
