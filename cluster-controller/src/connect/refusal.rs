//! The reasons why a tunnel is refused.

use http::StatusCode;

/// The kinds of refusal, as clients and metrics observe them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RefusalReason {
    /// The request is invalid.
    Invalid,
    /// The target must not be reached from here.
    Forbidden,
    /// The target refuses the connection, or no route to it exists.
    Unreachable,
    /// The limit of concurrent tunnels is reached.
    Busy,
    /// The target did not respond in time.
    TimedOut,
}

impl RefusalReason {
    pub(crate) const ALL: [Self; 5] = [Self::Invalid, Self::Forbidden, Self::Unreachable, Self::Busy, Self::TimedOut];

    /// Returns the HTTP status of this reason.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unreachable => StatusCode::BAD_GATEWAY,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns the reason of an HTTP status, if it is one of these.
    pub(crate) fn of_status(status: StatusCode) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.status() == status)
    }

    /// Returns the label for metrics and logs.
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

/// A refused CONNECT, with a line of text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct ConnectRefusal {
    pub(crate) reason: RefusalReason,
    /// The text for the client.
    pub(crate) text: String,
}

impl ConnectRefusal {
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
