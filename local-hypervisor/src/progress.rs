//! What is being done, for whoever watches.

use core::fmt;

/// Is told each step as it begins.
pub type FleetProgress<'a> = &'a (dyn Fn(&FleetStep) + Send + Sync);

/// A step of [`create`](crate::create) or [`destroy`](crate::destroy). Machines are named as their documents are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetStep {
    /// Another process works on the fleet, or on the networks of all fleets.
    WaitForOthers,
    /// The fleet's networks are made, or found complete.
    Networks {
        /// The fleet.
        fleet: String,
    },
    /// A machine's namespaces and directories are made, or found complete.
    Machine {
        /// The machine.
        machine: String,
    },
    /// A machine's containerd starts.
    Start {
        /// The machine.
        machine: String,
    },
    /// A machine's agent starts.
    StartAgent {
        /// The machine.
        machine: String,
    },
    /// A machine is ready.
    Ready {
        /// The machine.
        machine: String,
    },
    /// A machine's processes are ended.
    Stop {
        /// The machine.
        machine: String,
    },
    /// A machine is gone.
    Removed {
        /// The machine.
        machine: String,
    },
}

impl fmt::Display for FleetStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitForOthers => write!(f, "waiting for another process"),
            Self::Networks { fleet } => write!(f, "{fleet}: networks"),
            Self::Machine { machine } => write!(f, "{machine}: namespaces"),
            Self::Start { machine } => write!(f, "{machine}: starting containerd"),
            Self::StartAgent { machine } => write!(f, "{machine}: starting the agent"),
            Self::Ready { machine } => write!(f, "{machine}: ready"),
            Self::Stop { machine } => write!(f, "{machine}: stopping"),
            Self::Removed { machine } => write!(f, "{machine}: removed"),
        }
    }
}
