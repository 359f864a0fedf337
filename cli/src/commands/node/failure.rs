//! Failures of the commands of a worker. The exit code is 2 if the cause is the machine, the token or the user, and nothing was changed.

use keelway_node::{
    DaemonError, InformationError, JoinError, LeaveError, RegistryConfigError, StatusError, UndoError, WorkerLockError,
};

use crate::exit::CommandFailure;

/// The help for a machine that is not a worker.
const NO_WORKER: &str = "there is nothing to do; if the worker has another directory, set --state-dir";

/// An error that may have changed nothing, and its help.
pub(super) trait HarmlessError: std::error::Error + Send + Sync + 'static {
    /// Returns what to do, or `None` if the machine, the token and the user are not the cause, or if something was changed.
    fn help(&self) -> Option<&'static str>;
}

/// Converts the error with its causes into a failure.
pub(super) fn into_failure(error: impl HarmlessError) -> CommandFailure {
    match error.help() {
        Some(help) => CommandFailure::usage(format!("{:#}", anyhow::Error::from(error)), help),
        None => CommandFailure::other(error),
    }
}

/// Fails unless the user is root, who owns all files of a worker.
pub(super) fn only_root() -> Result<(), CommandFailure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(CommandFailure::usage("this command requires root", "run it as root, for example with sudo"))
}

impl HarmlessError for JoinError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are failures on the way")]
    fn help(&self) -> Option<&'static str> {
        match self {
            Self::Faults(_) | Self::Name { .. } => Some("nothing was changed; correct all of these and join again"),
            Self::Endpoints(_) => Some(
                "nothing was changed; check that this machine can connect to one of these addresses; if the token is old, create a new one",
            ),
            Self::Young(_) => Some("nothing was changed; join again once the cluster is ready"),
            Self::Token(_) => Some("nothing was changed; join again with a new token"),
            Self::Information(InformationError::Missing(_) | InformationError::Form(_))
            | Self::Release(_)
            | Self::Proxy(_) => Some("nothing was changed; correct this and join again"),
            Self::Elsewhere | Self::Named(_) => Some("nothing was changed"),
            Self::Differs(_) => Some(
                "nothing was changed; join with the previous options (set labels of an existing Node with `kubectl label node`), or run `keelway node leave` or `keelway node forget` first",
            ),
            _ => None,
        }
    }
}

impl HarmlessError for LeaveError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are failures on the way")]
    fn help(&self) -> Option<&'static str> {
        match self {
            Self::NoWorker(_) => Some(NO_WORKER),
            Self::Undo(undo) => undo.help(),
            _ => None,
        }
    }
}

impl HarmlessError for UndoError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are failures on the way")]
    fn help(&self) -> Option<&'static str> {
        match self {
            Self::NoWorker(_) => Some(NO_WORKER),
            _ => None,
        }
    }
}

impl HarmlessError for DaemonError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are failures on the way")]
    fn help(&self) -> Option<&'static str> {
        match self {
            Self::NotJoined(_) => Some("run `keelway node join` first"),
            _ => None,
        }
    }
}

impl HarmlessError for StatusError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are failures on the way")]
    fn help(&self) -> Option<&'static str> {
        match self {
            Self::NoWorker(_) => Some("run `keelway node join` first, or set --state-dir to its directory"),
            _ => None,
        }
    }
}

impl HarmlessError for RegistryConfigError {
    fn help(&self) -> Option<&'static str> {
        Some("nothing was changed; set --registry-config to a config.json of docker with `auths`")
    }
}

impl HarmlessError for WorkerLockError {
    fn help(&self) -> Option<&'static str> {
        match self {
            Self::Busy(_) => Some("nothing was changed; wait until the other command has finished"),
            Self::File(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_changed_nothing_have_help() {
        assert!(JoinError::Elsewhere.help().is_some());
        assert!(JoinError::Named("w1".to_owned()).help().is_some());
        assert!(JoinError::Release("1.2.3".to_owned()).help().is_some());
        assert!(JoinError::Endpoints(vec![]).help().is_some());
        assert!(LeaveError::NoWorker("/a".to_owned()).help().is_some());
        assert!(WorkerLockError::Busy("/a".to_owned()).help().is_some());
        assert!(DaemonError::Running("/a".to_owned()).help().is_none());
    }
}
