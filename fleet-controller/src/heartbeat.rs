//! Whether the agent of a workload cluster is there. Pure: time is an argument.
//!
//! An agent renews the Lease `agent` in the namespace of its cluster. As with leader election, clocks of machines are not compared: a Lease is
//! as old as this process has observed it unchanged, by its own clock.

use std::time::{Duration, Instant};

use keelway_api::condition::{ConditionStatus, ConditionValue};

/// Without a renewal for this long, it is not known whether the agent is there. It is [`keelway_fleet::names::AGENT_LEASE_SECONDS`].
pub const UNKNOWN_AFTER: Duration =
    Duration::from_secs(keelway_fleet::names::AGENT_LEASE_SECONDS.unsigned_abs() as u64);
/// Without a renewal for three times as long, the agent is regarded as gone.
pub const LOST_AFTER: Duration = Duration::from_secs(120);

/// What was observed of an agent's Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The renewal, as the agent wrote it. It is compared only with itself.
    renewal: String,
    /// When this process observed it first.
    since: Instant,
    /// Whether this process has observed a renewal. The Lease that it finds at its start may be of any age.
    is_fresh: bool,
}

impl Heartbeat {
    /// Returns what is known after the observation of a Lease. `before` is what was known.
    #[must_use]
    pub fn observe(before: Option<&Self>, renewal: &str, now: Instant) -> Self {
        match before {
            Some(before) if before.renewal == renewal => before.clone(),
            before => Self { renewal: renewal.to_owned(), since: now, is_fresh: before.is_some() },
        }
    }

    /// Whether the last renewal was observed within [`UNKNOWN_AFTER`].
    #[must_use]
    pub fn is_current(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < UNKNOWN_AFTER
    }

    /// Whether this process has observed a renewal, so that the agent has a certificate and uses it.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }
}

/// Whether a cluster is ready, and when to check again if nothing is observed until then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// The condition `Ready`.
    pub condition: ConditionValue,
    /// When the condition changes without a renewal.
    pub next: Option<Duration>,
}

/// Decides whether a cluster is ready. `current` is the status of its condition `Ready` so far.
#[must_use]
pub fn readiness(heartbeat: Option<&Heartbeat>, current: Option<ConditionStatus>, now: Instant) -> Readiness {
    let Some(heartbeat) = heartbeat else {
        return not_ready(ConditionStatus::False, "NotRegistered", NEVER, None);
    };
    let age = now.saturating_duration_since(heartbeat.since);
    let was_ready = heartbeat.is_fresh || current == Some(ConditionStatus::True);
    match (age < UNKNOWN_AFTER, age < LOST_AFTER) {
        (true, _) if was_ready => {
            let message = "the agent renews its Lease".to_owned();
            let condition = ConditionValue { status: ConditionStatus::True, reason: "Reporting".to_owned(), message };
            Readiness { condition, next: Some(UNKNOWN_AFTER.saturating_sub(age)) }
        }
        (_, true) if current != Some(ConditionStatus::False) || heartbeat.is_fresh => {
            not_ready(ConditionStatus::Unknown, "NoHeartbeat", SILENT, Some(LOST_AFTER.saturating_sub(age)))
        }
        _ => not_ready(ConditionStatus::False, "AgentLost", LOST, None),
    }
}

const NEVER: &str = "no agent has registered; install one with `keelway fleet agent-manifests`";
const SILENT: &str = "the agent has not renewed its Lease for 40 s; what runs in the cluster goes on, and changes wait";
const LOST: &str = "the agent has not renewed its Lease for 120 s; what runs in the cluster goes on, and changes wait; check the agent and its \
    connection to the fleet";

fn not_ready(status: ConditionStatus, reason: &str, message: &str, next: Option<Duration>) -> Readiness {
    let condition = ConditionValue { status, reason: reason.to_owned(), message: message.to_owned() };
    Readiness { condition, next }
}
