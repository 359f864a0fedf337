//! Commands of docs/operations.md for a management cluster, which the real kubectl runs without a server. They result in the same documents as what
//! the page describes for an installation without a manager.

use std::{env, fs, path::Path, process::Command};

use keelway_api::{Documents, jiff::Timestamp, name::HypervisorName};
use keelway_cri::testing::cache;

use super::{quorum, transcript::shell_blocks, world::World, worlds};

const PAGE: &str = "docs/operations.md";

/// Each object that a command line names is a file.
const KUBECTL: &str = r#"
kubectl() {
  local verb=$1 kind=$2 names=() name
  shift 2
  while [[ $1 != -* && $1 != *=* ]]; do names+=("$1"); shift; done
  for name in "${names[@]}"; do
    command kubectl "$verb" --local --output=yaml --filename="$kind/$name.yaml" "$@" > changed.yaml
    mv changed.yaml "$kind/$name.yaml"
  done
}
"#;

/// Passes need machines, and change no spec.
const WITHOUT_PASSES: &str = r#"
keelway() {
  if [[ $1 == reconcile ]]; then cat; else command keelway "$@"; fi
}
"#;

/// The members on the machines `hv-2` and `hv-3` of the page.
const ON_LOST_MACHINES: [(&str, &str); 2] = [("hv-2", "c1/etcd-1"), ("hv-3", "c1/etcd-2")];

#[test]
fn a_lost_member_needs_the_same_with_and_without_a_manager() {
    let mut world = worlds::three();
    let lost = &quorum::LOST[..1];
    quorum::lose(&mut world, lost);
    let section = ".. one etcd member is lost";
    let by_kubectl = changed_by_kubectl(&world, section);
    let by_keelway = changed_by_keelway(&world, section, lost, "drained.yaml");
    assert_changed(&world, &by_kubectl, &by_keelway);
}

#[test]
fn a_lost_quorum_needs_the_same_with_and_without_a_manager() {
    let mut world = worlds::three();
    quorum::lose(&mut world, &quorum::LOST);
    // The store reports the loss one pass after its members have no leader.
    world.pass();
    let section = ".. etcd lost its quorum";
    let started = Timestamp::now().as_second();
    let mut by_kubectl = changed_by_kubectl(&world, section);
    let mut by_keelway = changed_by_keelway(&world, section, &quorum::LOST, "requested.yaml");
    for documents in [&mut by_kubectl, &mut by_keelway] {
        let cluster = documents.clusters.values_mut().next().unwrap();
        let requested = &mut cluster.spec.etcd.recover_quorum.as_mut().unwrap().requested_at.0;
        assert!((started..=Timestamp::now().as_second()).contains(&requested.as_second()), "{requested}");
        *requested = Timestamp::UNIX_EPOCH;
    }
    assert_changed(&world, &by_kubectl, &by_keelway);
}

#[test]
fn kubectl_increases_the_quota_of_the_page() {
    let world = worlds::three();
    let section = ".. etcd runs out of space";
    let by_kubectl = changed_by_kubectl(&world, section);
    let mut by_hand = world.clone();
    by_hand.cluster("c1").spec.etcd.quota = Some("8Gi".parse().unwrap());
    assert_changed(&world, &by_kubectl, &by_hand.documents);
}

#[test]
fn a_cluster_moves_by_the_commands_of_the_page() {
    let world = worlds::three();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("c1.yaml"), world.documents.write()).unwrap();
    let commands = shell_blocks(PAGE, ".. a cluster is to move to other machines").join("\n");
    run(directory.path(), &format!("{WITHOUT_PASSES}{}", commands.replace("hv-1", "private-1")));
    let moved = Documents::read(&fs::read(directory.path().join("next.yaml")).unwrap()).unwrap();
    let [new, old]: [HypervisorName; 2] = ["hv-3", "private-1"].map(|name| name.parse().unwrap());
    let mut before = moved.clone();
    before.hypervisors.remove(&new).unwrap();
    let drained = &mut before.hypervisors.get_mut(&old).unwrap().spec;
    assert!(drained.drain && drained.unschedulable, "{drained:?}");
    (drained.drain, drained.unschedulable) = (false, false);
    assert!(before == world.documents, "something else changed:\n{}", moved.write());
}

fn assert_changed(world: &World, by_kubectl: &Documents, expected: &Documents) {
    assert!(*by_kubectl != world.documents, "the commands change nothing");
    let equal = by_kubectl == expected;
    assert!(equal, "by kubectl:\n{}\nexpected:\n{}", by_kubectl.write(), expected.write());
}

/// Returns the blocks of commands that begin with this program, with the machines of the world.
fn blocks(world: &World, section: &str, program: &str) -> String {
    let blocks: Vec<String> =
        shell_blocks(PAGE, section).into_iter().filter(|block| block.trim_start().starts_with(program)).collect();
    assert!(!blocks.is_empty(), "{section} has no commands of {program}");
    let named = |text: String, (example, member): (&str, &str)| text.replace(example, &world.place_of(member));
    ON_LOST_MACHINES.into_iter().fold(blocks.join("\n"), named)
}

/// Runs the commands of a section for a management cluster on the documents.
fn changed_by_kubectl(world: &World, section: &str) -> Documents {
    let directory = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (name, document) in &world.documents.hypervisors {
        let mut object = Documents::default();
        object.hypervisors.insert(name.clone(), document.clone());
        files.push((format!("hypervisor/{name}.yaml"), object));
    }
    for (reference, document) in &world.documents.clusters {
        let mut object = Documents::default();
        object.clusters.insert(reference.clone(), document.clone());
        files.push((format!("cluster/{}.yaml", reference.name), object));
    }
    for (file, object) in &files {
        let path = directory.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, object.write()).unwrap();
    }
    run(directory.path(), &format!("{KUBECTL}{}", blocks(world, section, "kubectl ")));
    let mut changed = world.documents.clone();
    for (file, _) in files {
        let object = Documents::read(&fs::read(directory.path().join(file)).unwrap()).unwrap();
        changed.hypervisors.extend(object.hypervisors);
        changed.clusters.extend(object.clusters);
    }
    changed
}

/// Runs the commands of a section without a manager, and returns this file. Machines are annotated by hand before. Passes and plans need machines, and
/// change no spec.
fn changed_by_keelway(world: &World, section: &str, lost: &[&str], written: &str) -> Documents {
    let directory = tempfile::tempdir().unwrap();
    let mut annotated = world.clone();
    quorum::annotate(&mut annotated, lost);
    for name in ["c1.yaml", "lost.yaml"] {
        fs::write(directory.path().join(name), annotated.documents.write()).unwrap();
    }
    let commands = blocks(world, section, "keelway ");
    let needs_machines = |line: &&str| line.starts_with("keelway reconcile ") || line.starts_with("keelway plan ");
    let commands: Vec<&str> = commands.lines().filter(|line| !needs_machines(line)).collect();
    run(directory.path(), &commands.join("\n"));
    Documents::read(&fs::read(directory.path().join(written)).unwrap()).unwrap()
}

/// Runs commands of the page in a directory.
fn run(directory: &Path, commands: &str) {
    let keelway = Path::new(env!("CARGO_BIN_EXE_keelway")).parent().unwrap();
    let inherited = env::var_os("PATH").unwrap();
    let programs = [keelway.to_owned(), cache().unwrap().join("bin")];
    let path = env::join_paths(programs.into_iter().chain(env::split_paths(&inherited))).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", commands]).current_dir(directory);
    shell.env("PATH", path).env("HOME", directory).env("XDG_STATE_HOME", directory).env("KUBECONFIG", "/dev/null");
    let ran = shell.output().unwrap();
    assert!(ran.status.success(), "{commands}\n{}", String::from_utf8_lossy(&ran.stderr));
}
