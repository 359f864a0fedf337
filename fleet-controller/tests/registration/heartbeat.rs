//! Whether a cluster is ready.

use std::time::{Duration, Instant};

use keelway_api::condition::ConditionStatus;
use keelway_fleet_controller::heartbeat::{Heartbeat, Renewal, readiness};

const SECOND: Duration = Duration::from_secs(1);

fn observe(before: Option<&Heartbeat>, time: &str, now: Instant) -> Heartbeat {
    Heartbeat::observe(before, Renewal { time, seconds: Some(40) }, now)
}

fn status(heartbeat: &Heartbeat, current: Option<ConditionStatus>, now: Instant) -> ConditionStatus {
    readiness(Some(heartbeat), current, now).condition.status
}

#[test]
fn a_cluster_without_a_lease_has_no_agent() {
    let none = readiness(None, None, Instant::now());
    assert_eq!((none.condition.status, none.next), (ConditionStatus::False, None));
    assert_eq!(none.condition.reason, "NotRegistered");
}

#[test]
fn a_renewal_counts_for_forty_seconds() {
    let start = Instant::now();
    let first = observe(None, "a", start);
    let second = observe(Some(&first), "b", start + SECOND);
    let at = |seconds: u32| readiness(Some(&second), Some(ConditionStatus::True), start + SECOND * (seconds + 1));
    assert_eq!((at(0).condition.status, at(0).next), (ConditionStatus::True, Some(SECOND * 40)));
    assert_eq!(at(39).condition.status, ConditionStatus::True);
    assert_eq!((at(40).condition.status, at(40).next), (ConditionStatus::Unknown, Some(SECOND * 80)));
    assert_eq!(at(119).condition.status, ConditionStatus::Unknown);
    assert_eq!((at(120).condition.status, at(120).next), (ConditionStatus::False, None));
    let back = observe(Some(&second), "c", start + SECOND * 500);
    assert_eq!(status(&back, Some(ConditionStatus::False), start + SECOND * 500), ConditionStatus::True);
}

#[test]
fn the_same_renewal_again_is_none() {
    let start = Instant::now();
    let first = observe(None, "a", start);
    assert_eq!(observe(Some(&first), "a", start + SECOND * 30), first);
}

/// Another replica takes over. It does not know how old the Lease is.
#[test]
fn a_lease_of_unknown_age_changes_nothing_for_forty_seconds() {
    let start = Instant::now();
    let found = observe(None, "a", start);
    assert!(!found.is_fresh());
    for (current, at_first) in [
        (Some(ConditionStatus::True), ConditionStatus::True),
        (Some(ConditionStatus::Unknown), ConditionStatus::Unknown),
        (Some(ConditionStatus::False), ConditionStatus::False),
        (None, ConditionStatus::Unknown),
    ] {
        assert_eq!(status(&found, current, start), at_first, "{current:?}");
    }
    assert_eq!(status(&found, Some(ConditionStatus::True), start + SECOND * 40), ConditionStatus::Unknown);
    assert_eq!(status(&found, Some(ConditionStatus::Unknown), start + SECOND * 120), ConditionStatus::False);
}

/// The agent states how long its renewals count, and cannot state more than 40 seconds.
#[test]
fn a_renewal_counts_for_as_long_as_the_lease_states() {
    let start = Instant::now();
    let ready = |seconds, after: u32| {
        let renewal = |time| Renewal { time, seconds };
        let first = Heartbeat::observe(None, renewal("a"), start);
        let second = Heartbeat::observe(Some(&first), renewal("b"), start);
        status(&second, Some(ConditionStatus::True), start + SECOND * after)
    };
    assert_eq!([ready(Some(4), 3), ready(Some(4), 4)], [ConditionStatus::True, ConditionStatus::Unknown]);
    assert_eq!([ready(Some(4), 11), ready(Some(4), 12)], [ConditionStatus::Unknown, ConditionStatus::False]);
    for seconds in [None, Some(0), Some(-1), Some(3600)] {
        assert_eq!(
            [ready(seconds, 39), ready(seconds, 40)],
            [ConditionStatus::True, ConditionStatus::Unknown],
            "{seconds:?}"
        );
    }
}
