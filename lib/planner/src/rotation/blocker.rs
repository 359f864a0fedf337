//! What rotations wait for.

use alloc::{format, string::String, vec::Vec};

use keelway_api::{
    Time,
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
    /// Workers have to confirm what the phase requires.
    #[error("{} to {}", workers(.names), task_of(*.phase))]
    Workers {
        /// Their names.
        names: Vec<String>,
        /// The current phase.
        phase: RotationPhase,
    },
    /// Workers do not report what they trust.
    #[error("{} to report which authorities they trust: update them with `keelway node upgrade`, or remove them with `keelway node evict`", workers(.0))]
    SilentWorkers(Vec<String>),
    /// Workers that have not confirmed are not ready.
    #[error(
        "{} to return before {}: start them, or delete their Nodes. A worker that returns later has to join again with a token",
        workers(.names), .until.0
    )]
    AbsentWorkers {
        /// Their names.
        names: Vec<String>,
        /// When the rotation continues without them.
        until: Time,
    },
    /// The API did not report its workers.
    #[error("its API to report the workers: {0}")]
    WorkersUnknown(String),
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

/// `worker w1`, or `workers w1, w2`.
fn workers(names: &[String]) -> String {
    let noun = if names.len() == 1 { "worker" } else { "workers" };
    format!("{noun} {}", listed(names.iter()))
}

/// What workers have to do before a phase ends.
fn task_of(phase: RotationPhase) -> &'static str {
    match phase {
        RotationPhase::Announcing => "trust the next kubernetes authority",
        RotationPhase::Activating | RotationPhase::Reencrypting | RotationPhase::Prepared => {
            "get certificates from the new kubernetes authority"
        }
        RotationPhase::Retiring | RotationPhase::Completed => "stop trusting the previous kubernetes authority",
    }
}
