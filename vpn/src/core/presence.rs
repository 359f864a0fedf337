//! Decides which relay sends a packet to a peer: the one that hears the peer. Pure.
//!
//! Relays that have the same peers are siblings. Each one reports to its siblings which peers it hears, completely every two seconds, and changes
//! within a second. A reported peer expires unless it is reported again, so that a lost report or a lost sibling needs no further handling. A relay
//! uses a sibling for a peer that it does not hear itself. Without such a sibling, it sends to the peer, as a relay without siblings does.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) use self::report::PresenceReport;
use crate::key::PublicKey;

/// How long a peer counts as heard after its last message, and after the last report about it. A worker sends to each gateway every two seconds, and
/// a relay reports as often. One message and one report may be lost.
pub(super) const HEARD_FOR: Duration = Duration::from_millis(4500);
/// The interval of complete reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// Which peers this relay and its siblings hear.
#[derive(Debug, Default)]
pub(super) struct Presence {
    siblings: BTreeMap<PublicKey, SiblingReports>,
    /// The peers of this relay's last report.
    reported: BTreeSet<PublicKey>,
    next_report: Duration,
}

/// The reports of one sibling.
#[derive(Debug, Default)]
struct SiblingReports {
    last: Option<Duration>,
    /// The peers that the sibling hears, with the time of the last report.
    heard: BTreeMap<PublicKey, Duration>,
}

impl Presence {
    /// Adds a sibling, or makes it an ordinary peer.
    pub(super) fn set_sibling(&mut self, peer: PublicKey, is_sibling: bool) {
        if is_sibling {
            self.siblings.entry(peer).or_default();
        } else {
            self.siblings.remove(&peer);
        }
    }

    /// Forgets a peer that was removed.
    pub(super) fn remove(&mut self, peer: &PublicKey) {
        self.siblings.remove(peer);
        self.reported.remove(peer);
        for sibling in self.siblings.values_mut() {
            sibling.heard.remove(peer);
        }
    }

    pub(super) fn is_sibling(&self, peer: &PublicKey) -> bool {
        self.siblings.contains_key(peer)
    }

    /// Whether there is no sibling.
    pub(super) fn is_alone(&self) -> bool {
        self.siblings.is_empty()
    }

    pub(super) fn siblings(&self) -> impl Iterator<Item = &PublicKey> {
        self.siblings.keys()
    }

    /// Returns the report that is due: all heard peers, or the changes since the last report.
    pub(super) fn report(&mut self, heard: BTreeSet<PublicKey>, now: Duration) -> Option<PresenceReport> {
        let silent: BTreeSet<PublicKey> = self.reported.difference(&heard).copied().collect();
        let is_complete = now >= self.next_report;
        let new = heard.iter().filter(|peer| is_complete || !self.reported.contains(*peer)).copied().collect();
        let report = PresenceReport { heard: new, silent };
        if is_complete {
            self.next_report = now + REPORT_EVERY;
        }
        self.reported = heard;
        (is_complete || !report.is_empty()).then_some(report)
    }

    /// Records a sibling's report. It ignores peers that this relay does not have, so that no sibling uses more memory than all peers.
    pub(super) fn note(
        &mut self,
        sibling: &PublicKey,
        report: &PresenceReport,
        is_peer: impl Fn(&PublicKey) -> bool,
        now: Duration,
    ) {
        let Some(reports) = self.siblings.get_mut(sibling) else { return };
        reports.last = Some(now);
        for peer in &report.silent {
            reports.heard.remove(peer);
        }
        reports.heard.extend(report.heard.iter().filter(|peer| is_peer(peer)).map(|peer| (*peer, now)));
    }

    /// Returns a sibling that hears the peer. Of several, it is always the same one, so that packets stay in order.
    pub(super) fn sibling_that_hears(&self, peer: &PublicKey, now: Duration) -> Option<PublicKey> {
        let hears = |reports: &SiblingReports| is_recent(reports.heard.get(peer).copied(), now);
        self.siblings.iter().find(|(_, reports)| hears(reports)).map(|(sibling, _)| *sibling)
    }

    /// Returns the number of siblings that report to this relay.
    pub(super) fn reporting_siblings(&self, now: Duration) -> usize {
        self.siblings.values().filter(|reports| is_recent(reports.last, now)).count()
    }
}

/// Whether a message at this time still counts.
pub(super) fn is_recent(at: Option<Duration>, now: Duration) -> bool {
    at.is_some_and(|at| now.saturating_sub(at) < HEARD_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn keys(numbers: &[u8]) -> BTreeSet<PublicKey> {
        numbers.iter().map(|number| key(*number)).collect()
    }

    fn report(heard: &[u8], silent: &[u8]) -> PresenceReport {
        PresenceReport { heard: keys(heard), silent: keys(silent) }
    }

    fn with_siblings(siblings: &[u8]) -> Presence {
        let mut presence = Presence::default();
        for sibling in siblings {
            presence.set_sibling(key(*sibling), true);
        }
        presence
    }

    #[test]
    fn a_report_is_complete_every_two_seconds_and_has_changes_in_between() {
        let mut presence = with_siblings(&[100]);
        let mut now = SECOND * 10;
        assert_eq!(presence.report(keys(&[1, 2]), now), Some(report(&[1, 2], &[])));
        now += SECOND;
        assert_eq!(presence.report(keys(&[1, 2]), now), None);
        assert_eq!(presence.report(keys(&[2, 3]), now), Some(report(&[3], &[1])));
        now += SECOND;
        assert_eq!(presence.report(keys(&[2, 3]), now), Some(report(&[2, 3], &[])));
        now += REPORT_EVERY;
        assert_eq!(presence.report(keys(&[]), now), Some(report(&[], &[2, 3])));
        now += REPORT_EVERY;
        assert_eq!(
            presence.report(keys(&[]), now),
            Some(report(&[], &[])),
            "a sibling that hears no peer reports, too"
        );
    }

    #[test]
    fn a_reported_peer_is_reached_through_its_sibling_until_the_report_expires_or_is_revoked() {
        let mut presence = with_siblings(&[100, 101]);
        let now = SECOND * 10;
        assert_eq!(presence.sibling_that_hears(&key(1), now), None);
        presence.note(&key(101), &report(&[1, 2], &[]), |_| true, now);
        assert_eq!(presence.sibling_that_hears(&key(1), now), Some(key(101)));
        assert_eq!(presence.reporting_siblings(now), 1);
        presence.note(&key(100), &report(&[1], &[]), |_| true, now + SECOND);
        assert_eq!(presence.sibling_that_hears(&key(1), now + SECOND), Some(key(100)), "one of both");
        presence.note(&key(100), &report(&[], &[1]), |_| true, now + SECOND * 2);
        assert_eq!(presence.sibling_that_hears(&key(1), now + SECOND * 2), Some(key(101)));
        assert_eq!(presence.sibling_that_hears(&key(2), now + HEARD_FOR), None, "expired");
        assert_eq!(presence.reporting_siblings(now + HEARD_FOR), 1);
    }

    #[test]
    fn only_siblings_report_and_only_about_peers() {
        let mut presence = with_siblings(&[100]);
        let now = SECOND * 10;
        presence.note(&key(5), &report(&[1], &[]), |_| true, now);
        presence.note(&key(100), &report(&[2, 3], &[]), |peer| *peer == key(3), now);
        let heard = [1, 2, 3].map(|peer| presence.sibling_that_hears(&key(peer), now));
        assert_eq!(heard, [None, None, Some(key(100))]);
    }

    #[test]
    fn a_removed_peer_and_a_removed_sibling_are_forgotten() {
        let mut presence = with_siblings(&[100]);
        let now = SECOND * 10;
        presence.report(keys(&[1]), now);
        presence.note(&key(100), &report(&[1, 2], &[]), |_| true, now);
        presence.remove(&key(1));
        assert_eq!(presence.sibling_that_hears(&key(1), now), None);
        assert_eq!(presence.report(keys(&[]), now + SECOND), None);
        presence.set_sibling(key(100), false);
        assert_eq!(presence.sibling_that_hears(&key(2), now), None);
    }
}
