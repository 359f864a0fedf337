//! Progress reports.

use core::fmt;

/// Called at the start of each step.
pub type FleetProgress<'a> = &'a (dyn Fn(&FleetStep) + Send + Sync);

/// A step of [`create`](crate::create) or [`destroy`](crate::destroy). Machines have the names of their documents.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetStep {
    /// Waits for another process that works on the fleet, or on the networks of all fleets.
    WaitForOthers,
    /// Creates the fleet's networks, or finds them complete.
    Networks {
        /// The name of the fleet.
        fleet: String,
    },
    /// Creates a machine's namespaces and directories, or finds them complete.
    Machine {
        /// The name of the machine.
        machine: String,
    },
    /// Starts a machine's containerd.
    Start {
        /// The name of the machine.
        machine: String,
    },
    /// Starts a machine's agent.
    StartAgent {
        /// The name of the machine.
        machine: String,
    },
    /// A machine is ready.
    Ready {
        /// The name of the machine.
        machine: String,
    },
    /// Ends a machine's processes.
    Stop {
        /// The name of the machine.
        machine: String,
    },
    /// A machine was removed.
    Removed {
        /// The name of the machine.
        machine: String,
    },
}

impl fmt::Display for FleetStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitForOthers => write!(f, "waiting for another process"),
            Self::Networks { fleet } => write!(f, "{fleet}: creating networks"),
            Self::Machine { machine } => write!(f, "{machine}: creating namespaces"),
            Self::Start { machine } => write!(f, "{machine}: starting containerd"),
            Self::StartAgent { machine } => write!(f, "{machine}: starting the agent"),
            Self::Ready { machine } => write!(f, "{machine}: ready"),
            Self::Stop { machine } => write!(f, "{machine}: stopping"),
            Self::Removed { machine } => write!(f, "{machine}: removed"),
        }
    }
}
