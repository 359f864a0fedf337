//! Members whose data etcd reports as corrupt.

use std::{collections::BTreeSet, fs, process::Command};

use keelway_api::{Component, role::Role};
use keelway_e2e::{
    Plane, TestMachine, deadline,
    load::RecordedLoad,
    plane::store::PlaneStore,
    transcript::{shell_block, table_row},
};
use serde_json::{Value, json};

use crate::passes::{assert_replaced, members, run_until, settle};

pub(crate) const PAGE: &str = "docs/operations.md";
pub(crate) const SECTION: &str = ".. an etcd member is corrupt";
/// The row of the table whose commands remove a member.
const ROW: &str = "| etcd does not report which member differs |";
/// The row whose command disarms the alarm, as the last one of the other row does.
const ONLY_MEMBER: &str = "| the only member is corrupt |";

/// etcd raises the alarm after it compared hashes. The test raises it in its place, for a follower. The store serves nothing until the member is gone.
pub(crate) fn one_is_corrupt(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "corrupt");
    load.wait_for_requests(100);
    let store = PlaneStore::of(plane);
    let leader = store.leader().clone();
    let corrupt = plane.of_role(Role::Etcd).into_iter().find(|member| **member != leader).unwrap();
    let (name, before) = (corrupt.spec.name().unwrap().to_string(), members(plane));
    let id = member_id(&store, &leader, &name);
    raise(plane.machine(&leader), store.web_client(&leader, "/v3/maintenance/alarm"), id);
    let text = plane.text.clone();
    settle(plane, &text);
    assert_replaced(plane, &name, &before);
    load.wait_for_requests(50);
    load.end("a member was corrupt").assert_good();
}

/// etcd raises the alarm without a member if it does not know whose data differs. A person removes one by the commands of the documentation.
pub(crate) fn one_that_etcd_does_not_name(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "corrupt-unknown");
    load.wait_for_requests(100);
    let store = PlaneStore::of(plane);
    let leader = store.leader().clone();
    let removed = plane.of_role(Role::Etcd).into_iter().find(|member| **member != leader).unwrap();
    let (name, before) = (removed.spec.name().unwrap().to_string(), members(plane));
    let id = member_id(&store, &leader, &name);
    raise(plane.machine(&leader), store.web_client(&leader, "/v3/maintenance/alarm"), 0);
    let text = plane.text.clone();
    run_until(plane, text, "the plan leaves it to a person", |plane| {
        let plan = plane.plan(&plane.text);
        plan.contains("with `etcdctl member remove`, and disarm the alarm with `etcdctl alarm disarm`")
    });
    the_page_removes(plane, &leader, id);
    let text = plane.text.clone();
    settle(plane, &text);
    assert_replaced(plane, &name, &before);
    load.wait_for_requests(50);
    load.end("a member was removed that etcd did not name").assert_good();
}

/// Returns the id that etcd has for a member.
fn member_id(store: &PlaneStore<'_>, leader: &Component, name: &str) -> u64 {
    let listed = store.etcdctl(leader, &["member", "list"]).unwrap();
    let of_name = |member: &&Value| member["name"] == name;
    listed["members"].as_array().unwrap().iter().find(of_name).unwrap()["ID"].as_u64().unwrap()
}

/// Sends the request through the JSON API of etcd: `etcdctl` raises no alarm. The id 0 is no member.
fn raise(machine: &TestMachine, mut client: Command, id: u64) {
    let alarm = json!({ "action": "ACTIVATE", "memberID": id.to_string(), "alarm": "CORRUPT" });
    let _ = machine.run(client.arg("--data").arg(alarm.to_string())).succeeded();
}

/// Runs the commands of the documentation beside a member: those that compare hashes, and those that remove the member with this id.
fn the_page_removes(plane: &Plane<'_>, beside: &Component, id: u64) {
    fs::write(plane.keelway.directory().join("c1.yaml"), &plane.text).unwrap();
    let block = shell_block(PAGE, SECTION).replace("https://ADDRESS:PORT", &PlaneStore::of(plane).endpoint(beside));
    let block = block.replace("c1/etcd-0", &format!("c1/{}", beside.spec.name().unwrap()));
    // The block defines the function, and ends with a command.
    let (function, compare) = block.rsplit_once('\n').unwrap();
    let run = |command: &str| plane.keelway.shell(&format!("{function}\n{command}")).succeeded();
    compare_hashes(|| run(&format!("{compare} --write-out=json")).json());
    let commands = etcdctl_commands(ROW);
    assert_eq!((commands.len(), &commands[1..]), (2, etcdctl_commands(ONLY_MEMBER).as_slice()));
    for command in commands {
        let _ = run(&command.replace("ID", &format!("{id:x}")));
    }
}

/// Returns the commands of `etcdctl` in a row of the documentation.
fn etcdctl_commands(row: &str) -> Vec<String> {
    let row = table_row(PAGE, SECTION, row);
    row.split('`').filter(|text| text.starts_with("etcdctl ")).map(str::to_owned).collect()
}

/// Asks until all members compare the same revision: their hashes are the same.
fn compare_hashes(ask: impl Fn() -> Value) {
    deadline::until("the members are compared at one revision", deadline::KUBERNETES, || {
        let compared = ask();
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
