//! Which object is planned next, and which events of a watch are no news.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use std::time::Instant;

use keelway_fleet::{PlacementLink, Work};
use keelway_fleet_controller::placement::{ListedChange, ListedObjects, PlanCause, PlanQueue, ROUND};
use kube::{ResourceExt, runtime::watcher::Event};
use serde_json::json;

fn link(name: &str) -> PlacementLink {
    PlacementLink { namespace: "shop".to_owned(), name: name.to_owned() }
}

/// Adds objects in this order: those with a report begin with `r`.
fn queue(names: &[&str], now: Instant) -> PlanQueue {
    let mut queue = PlanQueue::default();
    for name in names {
        let cause = if name.starts_with('r') { PlanCause::Report } else { PlanCause::Decision };
        queue.add(link(name), cause, now);
    }
    queue
}

fn all(queue: &mut PlanQueue, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| queue.next(now)).map(|link| link.name).collect()
}

#[test]
fn decisions_are_made_in_the_order_of_arrival() {
    let now = Instant::now();
    let mut queue = queue(&["z", "a", "z", "m"], now);
    assert_eq!(queue.len(), 3);
    assert_eq!(all(&mut queue, now), ["z", "a", "m"]);
    assert!(queue.is_empty() && queue.next_due(now).is_none());
}

#[test]
fn reports_about_an_object_are_merged_for_a_round() {
    let now = Instant::now();
    let mut queue = queue(&["r1"], now);
    assert_eq!((queue.next(now), queue.next_due(now)), (None, Some(now + ROUND)));
    queue.add(link("r1"), PlanCause::Report, now + ROUND / 2);
    assert_eq!(all(&mut queue, now + ROUND), ["r1"], "a later report does not delay the first one");
    assert!(queue.is_empty());
}

#[test]
fn reports_wait_for_decisions_but_not_forever() {
    let now = Instant::now();
    let mut queue = queue(&["r1", "r2", "a", "b", "c", "d", "e", "f", "g"], now);
    assert_eq!(all(&mut queue, now + ROUND), ["a", "b", "c", "r1", "d", "e", "f", "r2", "g"]);
}

#[test]
fn an_object_that_needs_a_decision_does_not_wait_for_its_report() {
    let now = Instant::now();
    let mut queue = queue(&["r1", "r2"], now);
    queue.add(link("r1"), PlanCause::Decision, now);
    assert_eq!(queue.next_due(now), Some(now));
    assert_eq!(all(&mut queue, now), ["r1"]);
    assert_eq!(all(&mut queue, now + ROUND), ["r2"], "it is planned once");
    queue.add(link("a"), PlanCause::Decision, now);
    queue.add(link("a"), PlanCause::Report, now);
    assert_eq!(all(&mut queue, now), ["a"]);
    assert!(queue.is_empty());
}

fn work(uid: &str, version: &str) -> Work {
    serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Work",
        "metadata": { "name": "a", "uid": uid, "resourceVersion": version },
        "spec": { "manifest": {}, "placement": { "namespace": "shop", "name": "a" } },
    }))
    .unwrap()
}

#[test]
fn what_a_write_returned_is_no_news_in_a_watch() {
    let mut works = ListedObjects::default();
    let key = |work: &Work| work.name_any();
    works.items.insert("a".to_owned(), work("1", "100"));
    let has = |works: &ListedObjects<String, Work>, event| works.has(&event, key);
    assert!(has(&works, Event::Apply(work("1", "100"))));
    assert!(has(&works, Event::Apply(work("1", "99"))), "an older event would undo what is known");
    assert!(!has(&works, Event::Apply(work("1", "101"))));
    assert!(!has(&works, Event::Apply(work("2", "99"))), "another object of the name");
    assert!(!has(&works, Event::Apply(work("1", "unknown"))));
    assert!(!has(&works, Event::Delete(work("1", "99"))));
    assert!(!has(&works, Event::InitApply(work("1", "99"))), "a list is the state after a restore");
    let changed = works.observe(Event::Delete(work("1", "102")), |work| Some((work.name_any(), work)));
    assert_eq!(changed, ListedChange::Deleted("a".to_owned()));
    assert!(!has(&works, Event::Apply(work("1", "99"))));
}
