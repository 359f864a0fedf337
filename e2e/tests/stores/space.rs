//! A store whose data in use fills its quota. A person makes room in both ways of the documentation.

use std::{fs, ops::Range, time::Instant};

use keelway_e2e::{
    Plane,
    machine::millis,
    plane::store::{FILLED, PlaneStore, fill},
    transcript::shell_blocks,
};

use crate::passes::{run_until, settle};

const PAGE: &str = "docs/operations.md";
const SECTION: &str = ".. etcd runs out of space";

/// The smallest quota, and the one of the documentation.
const QUOTAS: [&str; 2] = ["256Mi", "8Gi"];
/// The data of these machines is in memory, and counts as memory of the members. A defragmentation needs the size of the data again, several times.
const MEMORY: &str = "10Gi";
/// Numbers of more values of 1 MiB than the smallest quota has room for. All have three digits, so that etcd sorts them.
const VALUES: Range<usize> = 100..400;
/// Without these, less than three quarters of the quota are in use.
const DELETED: Range<usize> = 100..190;

/// Fills the store twice. No acknowledged value is lost, and the API accepts writes afterwards.
pub(crate) fn data_fills_the_quota(plane: &mut Plane<'_>) {
    let [smallest, larger] = QUOTAS;
    let small = with_quota(plane, smallest);
    settle(plane, &small);
    let _ = plane.kubectl.run(&["create", "configmap", "earlier"]).succeeded();

    let filled = fill_with_data(plane, VALUES);
    the_api_refuses_what_is_new(plane);
    let keys = [DELETED.start, DELETED.end].map(|number| format!("{FILLED}{number}"));
    assert!(etcdctl(plane, &["del", &keys[0], &keys[1]]).is_some());
    let _ = plane.kubectl.run(&["delete", "configmap", "earlier"]).succeeded();
    let text = plane.text.clone();
    the_page_ends_the_alarm(plane, &text);
    assert_eq!(number_of_values(plane), filled - DELETED.len());

    let filled = fill_with_data(plane, VALUES.end..VALUES.end + DELETED.len() + 30);
    the_api_refuses_what_is_new(plane);
    let large = with_quota(plane, larger);
    the_page_ends_the_alarm(plane, &large);
    assert_eq!(number_of_values(plane), filled);
}

fn with_quota(plane: &Plane<'_>, quota: &str) -> Vec<u8> {
    plane.changed(|spec| {
        spec.etcd.quota = Some(quota.parse().unwrap());
        spec.etcd.resources.get_or_insert_default().limits.memory = Some(MEMORY.parse().unwrap());
    })
}

/// Runs `etcdctl` beside the leader.
fn etcdctl(plane: &Plane<'_>, arguments: &[&str]) -> Option<serde_json::Value> {
    let store = PlaneStore::of(plane);
    store.etcdctl(store.leader(), arguments)
}

/// Writes values until no pass makes room for another one. Returns how many there are. A pass frees the pages that compaction left, and a member that was
/// full may accept some more values then.
fn fill_with_data(plane: &mut Plane<'_>, numbers: Range<usize>) -> usize {
    let before = number_of_values(plane);
    let mut next = numbers.start;
    loop {
        let filled = fill_store(plane, next..numbers.end);
        next = numbers.start + filled - before;
        let text = plane.text.clone();
        run_until(plane, text, "the alarm ends or is left to a person", |plane| {
            !has_alarm(plane) || waits_for_a_person(plane)
        });
        if has_alarm(plane) {
            println!("until {before} values became {filled}, and the data in use filled the quota");
            return filled;
        }
    }
}

/// Writes values until etcd refuses one. Returns how many there are.
fn fill_store(plane: &Plane<'_>, numbers: Range<usize>) -> usize {
    let store = PlaneStore::of(plane);
    let leader = store.leader();
    let client = store.client(&store.endpoint(leader));
    let filled = fill(plane.machine(leader), &client, plane.keelway.directory(), numbers);
    assert!(filled.stderr.contains("database space exceeded"), "{}", filled.stderr);
    number_of_values(plane)
}

fn has_alarm(plane: &Plane<'_>) -> bool {
    etcdctl(plane, &["alarm", "list"]).unwrap()["alarms"].as_array().is_some_and(|alarms| !alarms.is_empty())
}

fn number_of_values(plane: &Plane<'_>) -> usize {
    let counted = etcdctl(plane, &["get", FILLED, "--prefix", "--keys-only"]).unwrap();
    // etcdctl leaves out a number that is zero.
    counted["count"].as_u64().unwrap_or(0).try_into().unwrap()
}

/// Returns whether the documents, `plan` and `status` report that passes cannot make room.
fn waits_for_a_person(plane: &Plane<'_>) -> bool {
    const WAITS: &str = "the data in use fills the quota";
    let waits = |command| plane.keelway.run(&[command], &plane.text).succeeded().text().contains(WAITS);
    room(plane).as_deref() == Some("NoSpace") && waits("plan") && waits("status")
}

fn the_api_refuses_what_is_new(plane: &Plane<'_>) {
    let refused = plane.kubectl.run(&["create", "configmap", "refused"]);
    assert!(refused.stderr.contains("database space exceeded"), "{}", refused.stderr);
}

/// Runs the command of the documentation. The store then accepts writes.
fn the_page_ends_the_alarm(plane: &mut Plane<'_>, text: &[u8]) {
    let started = Instant::now();
    // The driver may write in this directory.
    let directory = plane.keelway.directory().join("nobody");
    fs::write(directory.join("c1.yaml"), text).unwrap();
    let blocks = shell_blocks(PAGE, SECTION);
    let reconcile = blocks.iter().find(|block| block.starts_with("keelway reconcile ")).unwrap();
    let _ = plane.keelway.shell(&format!("cd nobody; {reconcile}")).succeeded();
    println!("{}  until the store had room", millis(started.elapsed()));
    plane.take(fs::read(directory.join("c2.yaml")).unwrap());
    let _ = plane.kubectl.run(&["create", "configmap", "accepted"]).succeeded();
    let _ = plane.kubectl.run(&["delete", "configmap", "accepted"]).succeeded();
    let text = plane.text.clone();
    run_until(plane, text, "the condition clears by itself", |plane| room(plane).is_none());
}

/// Returns the reason why the store has no room.
fn room(plane: &Plane<'_>) -> Option<String> {
    let conditions = &plane.cluster().status.as_ref().unwrap().conditions;
    conditions.iter().find(|condition| condition.type_ == "EtcdHasRoom").map(|condition| condition.reason.clone())
}
