use std::{fmt, io, path::PathBuf, time::Duration};

use tonic::{Code, Status};

/// The call that failed, and its object: `StartContainer 3f2a..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The CRI method, or `ImportImage`.
    pub method: &'static str,
    /// The id or name of the object. Empty for calls that concern the whole runtime.
    pub object: String,
}

impl Operation {
    pub(crate) fn new(method: &'static str, object: impl Into<String>) -> Self {
        Self { method, object: object.into() }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        Ok(())
    }
}

/// The gRPC status of a failed call, from the runtime or from the transport.
#[derive(Debug)]
pub struct GrpcStatus(Box<Status>);

impl GrpcStatus {
    /// Returns the gRPC code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code()
    }

    /// Returns the message, as the runtime or the transport wrote it.
    #[must_use]
    pub fn message(&self) -> &str {
        self.0.message()
    }
}

impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message().is_empty() { write!(f, "{:?}", self.code()) } else { f.write_str(self.message()) }
    }
}

impl std::error::Error for GrpcStatus {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
    }
}

/// A failed call to the runtime.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// There is no connection, or it broke before the response. A change may have been made nevertheless.
    #[error("{operation}: cannot reach the runtime")]
    Unreachable {
        /// The call.
        operation: Operation,
        /// The status from the transport.
        #[source]
        answer: GrpcStatus,
    },
    /// There was no response in time: the runtime hangs, or is overloaded. A change may have been made nevertheless.
    #[error("{operation}: no response within {} s", deadline.as_secs_f32())]
    TimedOut {
        /// The call.
        operation: Operation,
        /// The time after which the call was cancelled.
        deadline: Duration,
    },
    /// The sandbox, container or image does not exist.
    #[error("{operation}: not found")]
    NotFound {
        /// The call.
        operation: Operation,
        /// The runtime's status.
        #[source]
        answer: GrpcStatus,
    },
    /// A sandbox or container of the same name exists.
    #[error("{operation}: the name is in use{}", held_by(holder.as_deref()))]
    Conflict {
        /// The call.
        operation: Operation,
        /// The id of the sandbox or container that has the name, if the runtime reported it.
        holder: Option<String>,
        /// The runtime's status.
        #[source]
        answer: GrpcStatus,
    },
    /// The runtime refused the call for any other reason.
    #[error("{operation}: refused")]
    Refused {
        /// The call.
        operation: Operation,
        /// The runtime's status.
        #[source]
        answer: GrpcStatus,
    },
    /// The response lacks something that the protocol requires.
    #[error("{operation}: cannot decode the response: {what}")]
    Malformed {
        /// The call.
        operation: Operation,
        /// What is wrong with the response.
        what: &'static str,
    },
    /// An image archive could not be read to its end.
    #[error("{operation}: cannot read the archive")]
    ReadArchive {
        /// The call.
        operation: Operation,
        /// The reader's error.
        #[source]
        source: io::Error,
    },
    /// The path of the socket is relative. gRPC servers refuse the authority that results from such a path.
    #[error("the runtime's socket {path:?} is not an absolute path")]
    RelativeSocket {
        /// The path from the caller.
        path: PathBuf,
    },
}

fn held_by(holder: Option<&str>) -> String {
    holder.map(|id| format!(" by {id}")).unwrap_or_default()
}

impl CriError {
    /// Returns whether the same call can succeed on a retry without a change to the request.
    #[must_use]
    pub fn retriable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } => true,
            Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::Refused { .. }
            | Self::Malformed { .. }
            | Self::ReadArchive { .. }
            | Self::RelativeSocket { .. } => false,
        }
    }

    pub(crate) fn from_status(operation: Operation, deadline: Duration, status: Status) -> Self {
        let answer = GrpcStatus(Box::new(status));
        if answer.came_from_transport() {
            return Self::Unreachable { operation, answer };
        }
        let code = answer.code();
        if code == Code::DeadlineExceeded {
            Self::TimedOut { operation, deadline }
        } else if code == Code::NotFound {
            Self::NotFound { operation, answer }
        } else if let holder @ Some(_) = answer.name_holder() {
            Self::Conflict { operation, holder, answer }
        } else if code == Code::AlreadyExists {
            Self::Conflict { operation, holder: None, answer }
        } else {
            Self::Refused { operation, answer }
        }
    }
}

impl GrpcStatus {
    /// Returns whether the transport made this status. A status from a server has no source; one for a broken connection has.
    fn came_from_transport(&self) -> bool {
        self.code() == Code::Unavailable || std::error::Error::source(&*self.0).is_some()
    }

    /// Returns the id of the object that has the name. containerd has no code for a name conflict, only the message `name "a_b_0" is reserved for
    /// "ID"`.
    fn name_holder(&self) -> Option<String> {
        let (_, rest) = self.message().split_once(" is reserved for \"")?;
        let (id, _) = rest.split_once('"')?;
        Some(id.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: Code, message: &str) -> CriError {
        CriError::from_status(Operation::new("RunPodSandbox", "p"), Duration::from_secs(1), Status::new(code, message))
    }

    #[test]
    fn a_reserved_name_is_a_conflict_that_names_its_holder() {
        let error = error(
            Code::Unknown,
            "failed to reserve sandbox name \"a_b_c_0\": name \"a_b_c_0\" is reserved for \"cafe\"",
        );
        assert!(matches!(&error, CriError::Conflict { holder: Some(id), .. } if id == "cafe"), "{error:?}");
        assert_eq!(error.to_string(), "RunPodSandbox p: the name is in use by cafe");
    }

    #[test]
    fn only_silence_is_retriable() {
        assert!(error(Code::Unavailable, "").retriable());
        assert!(error(Code::DeadlineExceeded, "").retriable());
        for code in [Code::NotFound, Code::AlreadyExists, Code::Unknown, Code::Internal, Code::FailedPrecondition] {
            assert!(!error(code, "").retriable(), "{code:?}");
        }
    }

    #[test]
    fn the_cause_is_the_source_and_not_in_the_text() {
        let error = error(Code::Unknown, "no room");
        assert_eq!(error.to_string(), "RunPodSandbox p: refused");
        assert_eq!(std::error::Error::source(&error).map(ToString::to_string).as_deref(), Some("no room"));
    }
}
