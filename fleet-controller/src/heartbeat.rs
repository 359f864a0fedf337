//! Whether the agent of a workload cluster is there. Pure: time is an argument.
//!
//! An agent renews the Lease `agent` in the namespace of its cluster, which states how long a renewal counts. As with leader election, clocks of
//! machines are not compared: a Lease is as old as this process has observed it unchanged, by its own clock.

use std::time::{Duration, Instant};

use keelway_api::condition::{ConditionStatus, ConditionValue};

/// How long a renewal counts at most, and if the Lease does not state it: [`keelway_fleet::names::AGENT_LEASE_SECONDS`].
const LONGEST: Duration = Duration::from_secs(keelway_fleet::names::AGENT_LEASE_SECONDS.unsigned_abs() as u64);
/// After so many times as long without a renewal, the agent is regarded as gone.
const LOST: u32 = 3;

/// What a Lease states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal<'a> {
    /// The time of the renewal, as the agent wrote it. It is compared only with itself.
    pub time: &'a str,
    /// How many seconds a renewal counts.
    pub seconds: Option<i32>,
}

/// What was observed of an agent's Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// [`Renewal::time`].
    renewal: String,
    /// How long it counts.
    counts: Duration,
    /// When this process observed it first.
    since: Instant,
    /// Whether this process has observed a renewal. The Lease that it finds at its start may be of any age.
    is_fresh: bool,
}

impl Heartbeat {
    /// Returns what is known after the observation of a Lease. `before` is what was known.
    #[must_use]
    pub fn observe(before: Option<&Self>, renewal: Renewal<'_>, now: Instant) -> Self {
        let stated = renewal.seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        let counts = stated.map_or(LONGEST, |seconds| Duration::from_secs(seconds).min(LONGEST));
        match before {
            Some(before) if before.renewal == renewal.time => Self { counts, ..before.clone() },
            before => Self { renewal: renewal.time.to_owned(), counts, since: now, is_fresh: before.is_some() },
        }
    }

    /// Whether the last renewal counts.
    #[must_use]
    pub fn is_current(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.counts
    }

    /// Returns how long the last renewal counts.
    #[must_use]
    pub fn counts(&self) -> Duration {
        self.counts
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
    let (unknown, lost) = (heartbeat.counts, heartbeat.counts * LOST);
    let was_ready = heartbeat.is_fresh || current == Some(ConditionStatus::True);
    match (age < unknown, age < lost) {
        (true, _) if was_ready => {
            let message = "the agent renews its Lease".to_owned();
            let condition = ConditionValue { status: ConditionStatus::True, reason: "Reporting".to_owned(), message };
            Readiness { condition, next: Some(unknown.saturating_sub(age)) }
        }
        (_, true) if current != Some(ConditionStatus::False) || heartbeat.is_fresh => {
            let message = silent(unknown);
            not_ready(ConditionStatus::Unknown, "NoHeartbeat", &message, Some(lost.saturating_sub(age)))
        }
        _ => {
            let message = format!("{}; check the agent and its connection to the fleet", silent(lost));
            not_ready(ConditionStatus::False, "AgentLost", &message, None)
        }
    }
}

const NEVER: &str = "no agent has registered; install one with `keelway fleet agent-manifests`";

fn silent(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("the agent has not renewed its Lease for {seconds} s; what runs in the cluster goes on, and changes wait")
}

fn not_ready(status: ConditionStatus, reason: &str, message: &str, next: Option<Duration>) -> Readiness {
    let condition = ConditionValue { status, reason: reason.to_owned(), message: message.to_owned() };
    Readiness { condition, next }
}
