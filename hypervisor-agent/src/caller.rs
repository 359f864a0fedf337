//! The authenticated peer of a network connection, as an extension of each of its requests.

use keelway_api::name::HypervisorName;

/// The peer of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) role: CallerRole,
    /// The URL, without a path, at which the peer finds streams.
    pub(crate) at: String,
}

/// The role that the peer's certificate grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallerRole {
    Driver,
    /// The agent of this machine.
    Agent(HypervisorName),
}
