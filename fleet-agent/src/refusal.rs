//! A fleet that refuses its agent: the cluster was removed, the rights were revoked, or the token is used up. No IO.
//!
//! A refusal deletes nothing in the workload cluster: only a Work with a deletion timestamp does. The agent asks again, at growing intervals, because an
//! administrator may restore the cluster.

use std::time::Duration;

use kube::Error;

use crate::{fleet::FleetError, identity::IdentityError};

/// The pause after all endpoints failed for another cause.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause between two attempts of an agent that is refused.
const LONGEST: Duration = Duration::from_secs(300);

/// How long the agent waits between its sessions.
#[derive(Debug, Default)]
pub(crate) struct SessionPause {
    refusals: u32,
}

impl SessionPause {
    /// Records the end of a session. Returns the pause before the next round of endpoints.
    pub(crate) fn after(&mut self, error: &FleetError) -> Duration {
        self.refusals = if is_refusal(error) { self.refusals.saturating_add(1) } else { 0 };
        AGAIN.saturating_mul(1 << self.refusals.min(16)).min(LONGEST)
    }

    /// Whether the last session ended because the fleet refused the agent.
    pub(crate) fn is_refused(&self) -> bool {
        self.refusals > 0
    }
}

/// Whether a session ended because the fleet does not accept this agent.
fn is_refusal(error: &FleetError) -> bool {
    matches!(error, FleetError::Revoked(_) | FleetError::Identity(IdentityError::Denied(_)))
        || matches!(error, FleetError::Identity(IdentityError::Create(error)) if is_denied(error))
}

/// Whether an API server did not authenticate the client, or refused a request because the user lacks rights.
pub(crate) fn is_denied(error: &Error) -> bool {
    matches!(error, Error::Api(status) if matches!(status.code, 401 | 403))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16) -> Error {
        Error::Api(Box::new(kube::core::Status { code, ..kube::core::Status::default() }))
    }

    #[test]
    fn a_refused_agent_retries_with_growing_pauses() {
        let mut pause = SessionPause::default();
        let other = FleetError::Heartbeat(Box::new(api(503)));
        assert_eq!(pause.after(&other), AGAIN);
        assert_eq!(pause.after(&other), AGAIN);
        let pauses: Vec<u64> =
            (0..12).map(|_| pause.after(&FleetError::Revoked(Box::new(api(403)))).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]);
        assert!(pause.is_refused());
        assert_eq!(pause.after(&other), AGAIN);
        assert!(!pause.is_refused());
    }

    #[test]
    fn a_used_token_is_a_refusal_and_an_absent_fleet_is_none() {
        for (code, refused) in [(401, true), (403, true), (500, false), (503, false)] {
            assert_eq!(
                is_refusal(&FleetError::Identity(IdentityError::Create(Box::new(api(code))))),
                refused,
                "{code}"
            );
        }
        assert!(is_refusal(&FleetError::Identity(IdentityError::Denied("NameRests".to_owned()))));
        assert!(!is_refusal(&FleetError::Identity(IdentityError::TimedOut)));
    }
}
