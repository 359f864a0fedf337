//! Whether a cluster is ready.

use std::time::{Duration, Instant};

use keelway_api::condition::ConditionStatus;
use keelway_fleet_controller::heartbeat::{Heartbeat, readiness};

const SECOND: Duration = Duration::from_secs(1);

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
    let first = Heartbeat::observe(None, "a", start);
    let second = Heartbeat::observe(Some(&first), "b", start + SECOND);
    let at = |seconds: u32| readiness(Some(&second), Some(ConditionStatus::True), start + SECOND * (seconds + 1));
    assert_eq!((at(0).condition.status, at(0).next), (ConditionStatus::True, Some(SECOND * 40)));
    assert_eq!(at(39).condition.status, ConditionStatus::True);
    assert_eq!((at(40).condition.status, at(40).next), (ConditionStatus::Unknown, Some(SECOND * 80)));
    assert_eq!(at(119).condition.status, ConditionStatus::Unknown);
    assert_eq!((at(120).condition.status, at(120).next), (ConditionStatus::False, None));
    let back = Heartbeat::observe(Some(&second), "c", start + SECOND * 500);
    assert_eq!(status(&back, Some(ConditionStatus::False), start + SECOND * 500), ConditionStatus::True);
}

#[test]
fn the_same_renewal_again_is_none() {
    let start = Instant::now();
    let first = Heartbeat::observe(None, "a", start);
    assert_eq!(Heartbeat::observe(Some(&first), "a", start + SECOND * 30), first);
}

/// Another replica takes over. It does not know how old the Lease is.
#[test]
fn a_lease_of_unknown_age_changes_nothing_for_forty_seconds() {
    let start = Instant::now();
    let found = Heartbeat::observe(None, "a", start);
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
