//! What rotations wait for.

use alloc::{format, string::String, vec::Vec};

use keelway_api::{
    Cluster, Time,
    name::{ComponentName, HypervisorName},
    rotation::{RotatedKey, RotationPhase},
};

use crate::text::listed;

/// What a rotation waits for. The text follows "waits for".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RotationBlocker {
    /// A component has to run with the keys of the phase.
    #[error("{component} to run {}", goal_of(*.key, *.phase))]
    Component {
        /// The component.
        component: ComponentName,
        /// The key that is rotated.
        key: RotatedKey,
        /// The current phase.
        phase: RotationPhase,
    },
    /// The machine of such a component was not observed.
    #[error("{machine} to respond: {component} may run there, and has to run {}", goal_of(*.key, *.phase))]
    Machine {
        /// The machine.
        machine: HypervisorName,
        /// The component.
        component: ComponentName,
        /// The key that is rotated.
        key: RotatedKey,
        /// The current phase.
        phase: RotationPhase,
    },
    /// Secrets have to be written again.
    #[error("every Secret to be written again with the key {key_name}: {rewritten} so far")]
    Secrets {
        /// The name of the key that is to encrypt them.
        key_name: String,
        /// The number of those that were written.
        rewritten: u64,
    },
    /// The API did not report which Secrets were written again.
    #[error("its API to report which Secrets were written again: {0}")]
    Api(String),
    /// Certificates have to be issued by the new generation of an authority.
    #[error("certificates to be issued by the new {0}")]
    Certificates(RotatedKey),
    /// Workers or agents have to confirm what the phase requires.
    #[error("{} to {}", holder.listed(.names), task_of(*.phase))]
    Trust {
        /// Who they are.
        holder: TrustHolder,
        /// Their names.
        names: Vec<String>,
        /// The current phase.
        phase: RotationPhase,
    },
    /// They do not report what they trust.
    #[error("{} to report trusted authorities: {}", holder.listed(.names), holder.update())]
    SilentTrust {
        /// Who they are.
        holder: TrustHolder,
        /// Their names.
        names: Vec<String>,
    },
    /// Those that have not confirmed are not ready.
    #[error("{} to return before {}: {}", holder.listed(.names), .until.0, holder.absence())]
    AbsentTrust {
        /// Who they are.
        holder: TrustHolder,
        /// Their names.
        names: Vec<String>,
        /// When the rotation continues without them.
        until: Time,
    },
    /// The API did not report them.
    #[error("its API to report the {}: {why}", holder.plural())]
    UnknownTrust {
        /// Who they are.
        holder: TrustHolder,
        /// The error.
        why: String,
    },
    /// Another rotation is requested before this one has ended.
    #[error(
        "the rotation of {requested_at} to be completed: set spec.rotations.{field}.requestedAt to that time again, and complete it before you \
         request another one",
        requested_at = .requested_at.0, field = .key.field()
    )]
    OtherRequest {
        /// The key that is rotated.
        key: RotatedKey,
        /// The request that is executed.
        requested_at: Time,
    },
}

/// How components have to run at the end of a phase.
fn goal_of(key: RotatedKey, phase: RotationPhase) -> String {
    match phase {
        RotationPhase::Announcing => format!("with the next {key}"),
        RotationPhase::Activating | RotationPhase::Reencrypting | RotationPhase::Prepared => {
            format!("with the new {key}")
        }
        RotationPhase::Retiring | RotationPhase::Completed => format!("without the previous {key}"),
    }
}

/// Who trusts the kubernetes authority of a cluster, and reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustHolder {
    /// Its workers.
    Worker,
    /// The agents of a fleet, one for each workload cluster.
    FleetAgent,
}

impl TrustHolder {
    pub(super) fn of(cluster: &Cluster) -> Self {
        if cluster.spec.is_fleet() { Self::FleetAgent } else { Self::Worker }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Worker => "workers",
            Self::FleetAgent => "agents",
        }
    }

    /// `worker w1`, or `agent of cluster west`.
    pub(super) fn named(self, name: &str) -> String {
        match self {
            Self::Worker => format!("worker {name}"),
            Self::FleetAgent => format!("agent of cluster {name}"),
        }
    }

    /// `worker w1`, or `workers w1, w2`.
    fn listed(self, names: &[String]) -> String {
        match (names, self) {
            ([name], _) => self.named(name),
            (names, Self::Worker) => format!("workers {}", listed(names.iter())),
            (names, Self::FleetAgent) => format!("agents of clusters {}", listed(names.iter())),
        }
    }

    fn update(self) -> &'static str {
        match self {
            Self::Worker => "`keelway node upgrade` updates a worker, and `keelway node evict` removes it",
            Self::FleetAgent => {
                "apply the manifests of this release in the workload cluster, or delete its Cluster in the fleet"
            }
        }
    }

    fn absence(self) -> &'static str {
        match self {
            Self::Worker => {
                "start the worker, or delete its Node. A worker that returns later has to join again with a token"
            }
            Self::FleetAgent => {
                "start the agent, or delete its Cluster in the fleet. An agent that returns later needs another token"
            }
        }
    }
}

/// What they have to do before a phase ends.
fn task_of(phase: RotationPhase) -> &'static str {
    match phase {
        RotationPhase::Announcing => "trust the next kubernetes authority",
        RotationPhase::Activating | RotationPhase::Reencrypting | RotationPhase::Prepared => {
            "get certificates from the new kubernetes authority"
        }
        RotationPhase::Retiring | RotationPhase::Completed => "stop trusting the previous kubernetes authority",
    }
}
