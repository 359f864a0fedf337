//! Why there is no tunnel.

use http::StatusCode;

/// The kinds of refusal, as clients and metrics see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RefusalReason {
    /// The request makes no sense.
    Invalid,
    /// The target is none that may be reached from here.
    Forbidden,
    /// The target does not take the connection, or there is no way to it.
    Unreachable,
    /// There are as many tunnels as there may be.
    Busy,
    /// Nothing came from the target in time.
    TimedOut,
}

impl RefusalReason {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [Self::Invalid, Self::Forbidden, Self::Unreachable, Self::Busy, Self::TimedOut];

    /// The status that says so.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unreachable => StatusCode::BAD_GATEWAY,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// What a status says, where it is one of ours.
    pub(crate) fn of_status(status: StatusCode) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.status() == status)
    }

    /// A word for metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Forbidden => "forbidden",
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::TimedOut => "timed-out",
        }
    }
}

/// A CONNECT that is refused, and one line that says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct ConnectRefusal {
    /// The kind.
    pub(crate) reason: RefusalReason,
    /// The line, for whoever asked.
    pub(crate) text: String,
}

impl ConnectRefusal {
    /// A refusal of that kind.
    pub(crate) fn new(reason: RefusalReason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_status_of_its_own() {
        for reason in RefusalReason::ALL {
            assert_eq!(RefusalReason::of_status(reason.status()), Some(reason));
        }
        assert_eq!(RefusalReason::of_status(StatusCode::OK), None);
    }
}
