//! Errors of simulated parts.

/// The error with which a simulated machine or store rejects a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct SimulatedRefusal(pub(super) String);

/// The caller gets no response, and does not learn whether the request was executed.
pub(super) fn no_answer() -> SimulatedRefusal {
    SimulatedRefusal("no answer".to_owned())
}
