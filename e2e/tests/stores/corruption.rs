//! A member that etcd reports as corrupt.

use std::{collections::BTreeSet, fs, process::Command};

use keelway_api::role::Role;
use keelway_e2e::{
    Plane, TestMachine, deadline, load::RecordedLoad, plane::store::PlaneStore, transcript::shell_block,
};
use serde_json::{Value, json};

use crate::passes::{assert_replaced, members, settle};

const PAGE: &str = "docs/operations.md";
const SECTION: &str = ".. an etcd member is corrupt";

/// etcd raises the alarm after it compared hashes. The test raises it in its place, for a follower. The store serves nothing until the member is gone.
pub(crate) fn one_is_corrupt(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "corrupt");
    load.wait_for_requests(100);
    let store = PlaneStore::of(plane);
    let leader = store.leader().clone();
    let corrupt = plane.of_role(Role::Etcd).into_iter().find(|member| **member != leader).unwrap();
    let (name, before) = (corrupt.spec.name().unwrap().to_string(), members(plane));
    let listed = store.etcdctl(&leader, &["member", "list"]).unwrap();
    let of_name = |member: &&Value| member["name"] == name.as_str();
    let id = listed["members"].as_array().unwrap().iter().find(of_name).unwrap()["ID"].as_u64().unwrap();
    raise(plane.machine(&leader), store.web_client(&leader, "/v3/maintenance/alarm"), id);
    let text = plane.text.clone();
    settle(plane, &text);
    assert_replaced(plane, &name, &before);
    load.wait_for_requests(50);
    load.end("a member was corrupt").assert_good();
    the_page_compares_hashes(plane);
}

/// Sends the request through the JSON API of etcd: `etcdctl` raises no alarm.
fn raise(machine: &TestMachine, mut client: Command, id: u64) {
    let alarm = json!({ "action": "ACTIVATE", "memberID": id.to_string(), "alarm": "CORRUPT" });
    let _ = machine.run(client.arg("--data").arg(alarm.to_string())).succeeded();
}

/// Runs the commands of the documentation until they compare the same revision: the hashes of all members are the same again.
fn the_page_compares_hashes(plane: &Plane<'_>) {
    fs::write(plane.keelway.directory().join("c1.yaml"), &plane.text).unwrap();
    let store = PlaneStore::of(plane);
    let member = store.leader();
    let block = shell_block(PAGE, SECTION).replace("https://ADDRESS:PORT", &store.endpoint(member));
    let block = block.replace("c1/etcd-0", &format!("c1/{}", member.spec.name().unwrap()));
    deadline::until("the members are compared at one revision", deadline::KUBERNETES, || {
        let compared = plane.keelway.shell(&format!("{block} --write-out=json")).succeeded().json();
        // etcdctl leaves out a number that is zero.
        let numbers = |name: &str| -> BTreeSet<u64> {
            let members = compared.as_array().unwrap().iter();
            members.map(|member| member["HashKV"][name].as_u64().unwrap_or_default()).collect()
        };
        assert_eq!(compared.as_array().unwrap().len(), 3, "{compared}");
        // Hashes leave out what is compacted.
        let is_one_revision = numbers("hash_revision").len() == 1 && numbers("compact_revision").len() == 1;
        assert!(!is_one_revision || numbers("hash").len() == 1 && !numbers("hash").contains(&0), "{compared}");
        is_one_revision
    });
}
