//! How machines are reached, and from where.

/// All that machines of one fleet have in common for those who drive them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachMode {
    /// The socket of a runtime without an agent, by root.
    Socket,
    /// The socket of an agent, by root.
    AgentSocket,
    /// An agent on the network, from beside it.
    Network,
    /// Agents of which private ones are reached through that of a public machine, from where clients are.
    Via,
    /// The same, where they wait to be called.
    DialOut,
    /// A runtime without an agent behind a proxy of the user's, from beside it.
    Proxy,
}

impl ReachMode {
    /// Whether machines mend themselves; a pass does it elsewhere.
    pub fn has_agents(self) -> bool {
        !matches!(self, Self::Socket | Self::Proxy)
    }

    /// The argument of what makes machines.
    pub(crate) fn agent(self) -> &'static str {
        if self.has_agents() { "--agent" } else { "--agent=false" }
    }

    /// What enrols their agents, if that is done.
    pub(crate) fn enrolled_from(self) -> Option<&'static str> {
        match self {
            Self::Socket | Self::AgentSocket | Self::Proxy => None,
            Self::Network => Some("private"),
            Self::Via => Some("public"),
            Self::DialOut => Some("dial-out"),
        }
    }
}
