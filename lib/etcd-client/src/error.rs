//! Why a call failed.

use std::time::Duration;

use tonic::{Code, Status};

/// A call of etcd's API failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// The member responded with an error, or no connection to it could be opened.
    #[error("{call} failed: {}", text(status))]
    Status {
        /// The call.
        call: &'static str,
        /// The response. Its text contains the causes.
        status: Box<Status>,
    },
    /// The member did not respond in time. A change may have taken effect.
    #[error("{call}: no response within {} s", within.as_secs())]
    TimedOut {
        /// The call.
        call: &'static str,
        /// The time limit.
        within: Duration,
    },
    /// The response lacks a part that every etcd sends.
    #[error("{call}: the response has no {part}")]
    Incomplete {
        /// The call.
        call: &'static str,
        /// The missing part.
        part: &'static str,
    },
}

/// etcd's reason for not promoting a learner that has not received enough of the log yet (`ErrGRPCLearnerNotReady`).
const LEARNER_BEHIND: &str = "in sync with leader";
/// etcd's reason for not compacting up to a revision again (`ErrGRPCCompacted`).
const COMPACTED: &str = "required revision has been compacted";

impl EtcdError {
    pub(crate) fn status(call: &'static str, status: Status) -> Self {
        Self::Status { call, status: Box::new(status) }
    }

    /// Whether etcd refused a compaction because the store was already compacted up to that revision or a later one.
    #[must_use]
    pub fn is_compacted(&self) -> bool {
        matches!(self, Self::Status { status, .. }
            if status.code() == Code::OutOfRange && status.message().contains(COMPACTED))
    }

    /// Whether etcd refused to promote a learner because the learner is too far behind the leader. A later call can succeed.
    #[must_use]
    pub fn is_learner_behind(&self) -> bool {
        matches!(self, Self::Status { status, .. }
            if status.code() == Code::FailedPrecondition && status.message().contains(LEARNER_BEHIND))
    }
}

/// Returns etcd's message without its prefix, or the reason why there is no connection.
fn text(status: &Status) -> String {
    let mut cause = std::error::Error::source(status);
    while let Some(next) = cause.and_then(std::error::Error::source) {
        cause = Some(next);
    }
    let text = cause.map_or_else(|| status.message().to_owned(), ToString::to_string);
    text.trim_start_matches("etcdserver: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_etcd_is_reported_without_its_prefix() {
        let behind = "etcdserver: can only promote a learner member which is in sync with leader";
        let error = EtcdError::status("MemberPromote", Status::failed_precondition(behind));
        assert!(error.is_learner_behind());
        assert_eq!(
            error.to_string(),
            "MemberPromote failed: can only promote a learner member which is in sync with leader"
        );
        let compacted = Status::out_of_range("etcdserver: mvcc: required revision has been compacted");
        assert!(EtcdError::status("Compact", compacted).is_compacted() && !error.is_compacted());
        let voter = Status::failed_precondition("etcdserver: can only promote a learner member");
        assert!(!EtcdError::status("MemberPromote", voter).is_learner_behind());
    }
}
