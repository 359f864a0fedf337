//! CRI client, and a fake runtime that passes the same contract tests.
//!
//! [`CriRuntime`] speaks `runtime.v1` to a container runtime. Requests are plain structs ([`SandboxSpec`], [`ContainerSpec`]), and so are responses
//! ([`CriSandbox`], [`CriContainer`], [`ContainerStatus`]). The wire types are private. Every call has a deadline ([`Deadlines`]). A failed call
//! returns a [`CriError`], whose variant is the kind of failure.
//!
//! [`images`] imports an image archive over containerd's own API, because CRI has no import.
//!
//! The feature `fake` adds a runtime in memory. The feature `testing` adds private containerds for live tests.

mod containerd;
mod deadlines;
mod error;
mod events;
pub mod exec;
#[cfg(feature = "fake")]
pub mod fake;
pub mod images;
mod leaked_task;
mod observed;
pub mod proxy;
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
