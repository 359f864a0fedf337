//! What simulated parts say when they do not do what they are asked for.

/// The machine says no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct SimulatedRefusal(pub(super) String);

/// Who asked does not learn what came of it.
pub(super) fn no_answer() -> SimulatedRefusal {
    SimulatedRefusal("no answer".to_owned())
}
