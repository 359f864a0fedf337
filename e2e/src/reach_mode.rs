//! How a driver reaches machines, and from which network.

/// The way in which a driver reaches all machines of one fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachMode {
    /// Through the socket of the runtime, as root. There is no agent.
    Socket,
    /// Through the socket of the agent, as root.
    AgentSocket,
    /// Through agents on the network. The driver is in the networks of the machines.
    Network,
    /// Through the agent of a public machine, which forwards to private ones. The driver is in the network of clients.
    Via,
    /// As [`Self::Via`], except that the agents dial out and wait for calls.
    DialOut,
    /// Through proxies of the user in front of the runtimes, where Keelway starts the agents. The driver is in the networks of the machines.
    Proxy,
}

impl ReachMode {
    /// Returns whether agents restart components. Without agents, a pass does that.
    pub fn has_agents(self) -> bool {
        self != Self::Socket
    }

    /// Returns the argument of the command that creates machines.
    pub(crate) fn agent(self) -> &'static str {
        if matches!(self, Self::Socket | Self::Proxy) { "--agent=false" } else { "--agent" }
    }

    /// Returns the way in which agents are enrolled, if they are.
    pub(crate) fn enrolled_from(self) -> Option<&'static str> {
        match self {
            Self::Socket | Self::AgentSocket | Self::Proxy => None,
            Self::Network => Some("private"),
            Self::Via => Some("public"),
            Self::DialOut => Some("dial-out"),
        }
    }
}
