//! `keelway status` and `keelway observe` show what machines and stores report now.

use std::collections::BTreeSet;

use keelway_api::{Observation, role::Role};
use keelway_e2e::{Plane, plane::store::PlaneStore};

/// Every member has a row, and the leader is the one that etcd itself reports.
pub(crate) fn shows_stores(plane: &Plane<'_>) {
    let status = plane.keelway.run(&["status", "-o", "wide"], &plane.text).succeeded();
    let leader = PlaneStore::of(plane).leader().spec.name().unwrap();
    let rows = members(status.text());
    assert_eq!(rows.len(), plane.of_role(Role::Etcd).len(), "{}", status.text());
    for row in rows {
        let role = if row[0] == format!("c1/{leader}") { "Leader" } else { "Follower" };
        assert_eq!((row[1], row[4], row[5]), (role, "4096Mi", "<none>"), "{row:?}");
        assert!(row[6].parse::<u64>().unwrap() < 5000, "{row:?}");
    }
}

/// The observation has the leader and the member list that etcd itself reports.
pub(crate) fn observes_stores(plane: &Plane<'_>) {
    let seen = plane.keelway.run(&["observe"], &plane.text).succeeded();
    let observation = Observation::read(&seen.stdout).unwrap();
    let store = &observation.stores[plane.cluster().id().unwrap()];
    let etcd = PlaneStore::of(plane);
    let leader = store.report(&etcd.leader().spec.name().unwrap()).unwrap();
    assert_eq!(store.leader(), Some(leader.id), "{store:?}");
    let listed: BTreeSet<String> = store.list.iter().flatten().map(|(_, member)| member.name.clone()).collect();
    assert_eq!(listed, etcd.voters(), "{store:?}");
}

/// A machine without power is not ready, and its member does not respond, although the documents record both as ready.
pub(crate) fn shows_what_is_away(plane: &Plane<'_>, away: &str) {
    let shown = |arguments: &[&str]| {
        let text = plane.keelway.run(&[&["status", "-o", "wide"][..], arguments].concat(), &plane.text).succeeded();
        let mut table = text.text().lines().skip_while(|line| !line.starts_with("HYPERVISOR"));
        let row = table.find(|line| line.starts_with(away)).unwrap().to_owned();
        (row.split_whitespace().nth(2).unwrap().to_owned(), text.text().to_owned())
    };
    assert_eq!(shown(&["--recorded"]).0, "True");
    let (ready, text) = shown(&[]);
    assert_eq!(ready, "False", "{text}");
    let lost = members(&text).into_iter().filter(|row| row[1..3] == ["<no", "response>"]).count();
    assert_eq!(lost, 1, "{text}");
}

/// Returns the rows of etcd members, each as words.
fn members(text: &str) -> Vec<Vec<&str>> {
    let table = text.lines().skip_while(|line| !line.starts_with("ETCD MEMBER")).skip(1);
    table.take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().collect()).collect()
}
