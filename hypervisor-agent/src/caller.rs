//! Who asks over a network, as each of its requests knows.

use keelway_api::name::HypervisorName;

/// Who came by a connection, and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) role: CallerRole,
    /// Where it finds streams: a URL without a path.
    pub(crate) at: String,
}

/// Whose certificate was shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallerRole {
    Driver,
    /// The agent of this machine.
    Agent(HypervisorName),
}
