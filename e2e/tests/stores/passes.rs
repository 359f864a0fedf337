//! Passes, and what holds after them.

use std::{collections::BTreeSet, time::Instant};

use keelway_api::role::Role;
use keelway_e2e::{Plane, deadline, plane::store::PlaneStore};

/// Runs passes over these documents until a condition holds. A machine that is away keeps passes from settling.
pub(crate) fn run_until(plane: &mut Plane<'_>, text: Vec<u8>, what: &str, holds: impl Fn(&Plane<'_>) -> bool) {
    let started = Instant::now();
    plane.take(text);
    let mut stderr = String::new();
    while !holds(plane) {
        assert!(started.elapsed() < deadline::SETTLE, "{what}: {stderr}");
        let ran = plane.keelway.run(&["reconcile", "--timeout", "5s"], &plane.text);
        assert!(matches!(ran.code(), 0 | 3), "{}", ran.stderr);
        stderr = ran.stderr;
        plane.take(ran.stdout);
    }
}

/// Runs passes over these documents until nothing is left to do.
pub(crate) fn settle(plane: &mut Plane<'_>, text: &[u8]) {
    let settled = plane.keelway.run(&["reconcile"], text).succeeded();
    plane.take(settled.stdout);
}

/// Returns the names of the members that stay, as the documents have them.
pub(crate) fn members(plane: &Plane<'_>) -> BTreeSet<String> {
    let store = plane.cluster().status.as_ref().unwrap().etcd.as_ref().unwrap();
    store.staying_members().map(|(name, _)| name.to_string()).collect()
}

/// Returns whether no change of the members is going on.
pub(crate) fn is_at_rest(plane: &Plane<'_>) -> bool {
    plane.cluster().status.as_ref().unwrap().etcd.as_ref().unwrap().change.is_none()
}

/// Asserts that this member was replaced by one with a new name, and that etcd, documents and machines agree about all of them.
pub(crate) fn assert_replaced(plane: &Plane<'_>, lost: &str, before: &BTreeSet<String>) {
    let now = members(plane);
    let new: Vec<&String> = now.difference(before).collect();
    assert_eq!((now.len(), new.len(), now.contains(lost)), (before.len(), 1, false), "{now:?} after {before:?}");
    assert_eq!(PlaneStore::of(plane).voters(), now);
    let components = plane.of_role(Role::Etcd).into_iter();
    let running = components.filter(|component| plane.running(component).is_some());
    let running: BTreeSet<String> = running.map(|component| component.spec.name().unwrap().to_string()).collect();
    assert_eq!(running, now);
}
