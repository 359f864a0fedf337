//! When the agent reports what its cluster has room for. Pure.
//!
//! What is free is reported rounded down, so a small pod changes nothing. A report also states until when it counts pods. The fleet reserves room for an
//! object until a report counts its pods, so a report follows each status of an object.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The shortest time between two reports.
pub const PACE: SignedDuration = SignedDuration::from_secs(5);
/// How far what the agent has observed may be behind its cluster.
pub const BEHIND: SignedDuration = SignedDuration::from_secs(5);
/// By how much a report that counts new pods is later than necessary.
const MARGIN: SignedDuration = SignedDuration::from_millis(500);

/// The last report that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentReport {
    /// When it was sent.
    pub at: Timestamp,
    /// Until when it counts pods.
    pub counts_until: Timestamp,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextReport {
    /// Send a report that counts pods until this time.
    Now {
        /// The time.
        counts_until: Timestamp,
    },
    /// Decide again after this time, or when something changes.
    Later(Duration),
    /// Decide again when something changes.
    OnChange,
}

/// Decides when to send the next report. `has_changed` is whether it differs from the last one, and `status` is when the status of an object was sent last.
#[must_use]
pub fn next_report(
    sent: Option<SentReport>,
    has_changed: bool,
    status: Option<Timestamp>,
    now: Timestamp,
) -> NextReport {
    let counts_until = now.saturating_sub(BEHIND).unwrap_or(now);
    let Some(sent) = sent else { return NextReport::Now { counts_until } };
    let uncounted = status.filter(|status| *status > sent.counts_until);
    let due = match (has_changed, uncounted) {
        (true, _) => sent.at.saturating_add(PACE),
        (false, Some(status)) => status
            .saturating_add(BEHIND + MARGIN)
            .map(|counted| counted.max(sent.at.saturating_add(PACE).unwrap_or(counted))),
        (false, None) => return NextReport::OnChange,
    };
    let rest = due.map_or(SignedDuration::ZERO, |due| due.duration_since(now));
    match Duration::try_from(rest) {
        Ok(rest) if !rest.is_zero() => NextReport::Later(rest),
        // It is due.
        Ok(_) | Err(_) => NextReport::Now { counts_until },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    #[test]
    fn changes_are_sent_at_once_and_at_most_every_five_seconds() {
        assert_eq!(next_report(None, true, None, at(0)), NextReport::Now { counts_until: at(-5) });
        let sent = Some(SentReport { at: at(0), counts_until: at(-5) });
        assert_eq!(next_report(sent, false, None, at(100)), NextReport::OnChange);
        assert_eq!(next_report(sent, true, None, at(2)), NextReport::Later(Duration::from_secs(3)));
        assert_eq!(next_report(sent, true, None, at(5)), NextReport::Now { counts_until: at(0) });
        assert_eq!(next_report(sent, true, None, at(100)), NextReport::Now { counts_until: at(95) });
    }

    #[test]
    fn a_report_follows_each_status_of_an_object_and_counts_its_pods() {
        let sent = Some(SentReport { at: at(0), counts_until: at(-5) });
        let NextReport::Later(rest) = next_report(sent, false, Some(at(10)), at(10)) else { panic!() };
        assert_eq!(rest, Duration::from_millis(5500));
        let NextReport::Now { counts_until } = next_report(sent, false, Some(at(10)), at(16)) else { panic!() };
        assert!(counts_until > at(10));
        let counted = Some(SentReport { at: at(16), counts_until });
        assert_eq!(next_report(counted, false, Some(at(10)), at(100)), NextReport::OnChange);
    }
}
