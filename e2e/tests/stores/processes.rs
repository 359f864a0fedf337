//! Members whose processes are killed, without and with their data. Agents start processes again.

use std::{fs, path::PathBuf};

use keelway_api::{Component, duration::Span, role::Role};
use keelway_e2e::{Plane, deadline, load::RecordedLoad, plane::store::PlaneStore, process, transcript::table_row};

use crate::{
    corruption::{PAGE, SECTION},
    passes::{assert_replaced, is_at_rest, members, run_until, settle},
};

/// The row of the table according to which a person moves the data of a member away.
const ROW: &str = "| a member exits whenever it starts,";

/// How often each of two members is killed. An agent waits longer before each restart.
const TURNS: usize = 2;

fn pid(plane: &Plane<'_>, member: &Component) -> u32 {
    plane.machine(member).container_pid(&plane.running(member).unwrap().container)
}

/// Waits until members have started again and respond.
fn respond(plane: &Plane<'_>, members: &[Component]) {
    let store = PlaneStore::of(plane);
    deadline::until("the members respond", deadline::KUBERNETES, || {
        members.iter().all(|member| store.revision(member).is_some())
    });
}

/// No request fails: clients retry for longer than the members need to start.
pub(crate) fn all_are_killed(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "all-killed");
    load.wait_for_requests(100);
    let all: Vec<Component> = plane.of_role(Role::Etcd).into_iter().cloned().collect();
    process::kill_all(all.iter().map(|member| pid(plane, member)));
    respond(plane, &all);
    load.wait_for_requests(100);
    load.end("all members were killed").assert_good();
    plane.is_whole_again("all members were killed");
}

pub(crate) fn two_are_killed_by_turns(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "by-turns");
    load.wait_for_requests(100);
    let two: Vec<Component> = plane.of_role(Role::Etcd).into_iter().take(2).cloned().collect();
    for member in std::iter::repeat_n(&two, TURNS).flatten() {
        process::kill(pid(plane, member));
        respond(plane, std::slice::from_ref(member));
        load.wait_for_requests(20);
    }
    load.end("two members were killed by turns").assert_good();
    plane.is_whole_again("two members were killed by turns");
}

/// The leader loses its data, as in the documentation, and its process. It does not start without data, and is replaced.
pub(crate) fn one_loses_its_data(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "data-lost");
    load.wait_for_requests(100);
    let lost = PlaneStore::of(plane).leader().clone();
    let (name, before) = (lost.spec.name().unwrap().to_string(), members(plane));
    let pid = pid(plane, &lost);
    let moved = the_page_moves_away(plane, &lost);
    process::kill(pid);
    fs::remove_dir_all(moved).unwrap();
    let soon = plane.changed(|spec| spec.etcd.replace_after = Some(Span::of_seconds(1)));
    run_until(plane, soon, "the member is replaced", |plane| is_at_rest(plane) && !members(plane).contains(&name));
    let usual = plane.changed(|spec| spec.etcd.replace_after = None);
    settle(plane, &usual);
    assert_replaced(plane, &name, &before);
    load.wait_for_requests(50);
    load.end("a member lost its process and its data").assert_good();
}

/// Moves the directory of the documentation away from the member. It stays in its file system, because the member still writes to it.
fn the_page_moves_away(plane: &Plane<'_>, member: &Component) -> PathBuf {
    let row = table_row(PAGE, SECTION, ROW);
    let path = row.split('`').find(|text| text.starts_with("/var/lib/keelway/")).unwrap();
    let (id, name) = (plane.cluster().id().unwrap().to_string(), member.spec.name().unwrap().to_string());
    let machine = plane.machine(member);
    let data = machine.path(&path.replace("CLUSTER_ID", &id).replace("etcd-1", &name));
    assert_eq!(data, plane.directory(member, "data"));
    let moved = machine.path("/var/lib/keelway/moved-data");
    fs::rename(data, &moved).unwrap();
    moved
}
