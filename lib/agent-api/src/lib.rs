//! `keelway.agent.v1`, the API of agents: its messages, the driver's client, and how an agent is enrolled.

pub mod client;
pub mod enrollment;
pub mod proto;
pub mod relay;
pub mod wire;

/// The largest message that an agent or its client accepts, in bytes. The config of a machine full of components has some hundred files of a few
/// kilobytes, and an agent has memory for several configs of this size.
pub const MAX_MESSAGE: usize = 16 << 20;
