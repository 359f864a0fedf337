//! `etcdctl`, as a person uses it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use keelway_api::{Component, role::Role};
use keelway_e2e::{Plane, TestMachine, command::run, deadline, plane::store::PlaneStore};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

/// The size of a value, which is below etcd's default limit of a request.
const VALUE: usize = 1 << 20;
/// Puts the value of the file `$1` at `$2` keys.
const FILL: &str =
    r#"file=$1 count=$2; shift 2; for i in $(seq "$count"); do "$@" put "filled-$i" < "$file" > /dev/null; done"#;

/// Writes this many MiB. Values differ from those that compress well.
pub(crate) fn fill(machine: &TestMachine, client: &Command, directory: &Path, mebibytes: usize) {
    let value_file = directory.join("value");
    let mut value = vec![0; VALUE];
    ChaCha8Rng::seed_from_u64(1).fill(&mut value[..]);
    fs::write(&value_file, value).unwrap();
    let mut fill = Command::new("sh");
    fill.args(["-ec", FILL, "sh"])
        .arg(&value_file)
        .arg(mebibytes.to_string())
        .arg(client.get_program())
        .args(client.get_args());
    let _ = machine.within(|| run(&mut fill, &[], deadline::SETTLE)).succeeded();
}

/// Saves a snapshot of a follower. Returns the time in seconds.
pub(crate) fn save(plane: &Plane<'_>) -> f64 {
    let store = PlaneStore::of(plane);
    let member = follower(plane);
    let file: PathBuf = plane.keelway.directory().join("by-hand.db");
    let mut command = store.client(&store.endpoint(&member));
    let took = plane.machine(&member).run(command.args(["snapshot", "save"]).arg(&file)).succeeded().took;
    fs::remove_file(file).unwrap();
    took.as_secs_f64()
}

/// Returns a member that does not lead.
pub(crate) fn follower(plane: &Plane<'_>) -> Component {
    let leader = PlaneStore::of(plane).leader().spec.name().unwrap();
    let mut members = plane.of_role(Role::Etcd).into_iter();
    members.find(|member| member.spec.name().unwrap() != leader).unwrap().clone()
}
