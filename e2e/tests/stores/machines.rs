//! Machines that are lost for good.

use std::fs;

use keelway_api::{Documents, hypervisor::LOST_ANNOTATION, name::HypervisorName};
use keelway_e2e::{Plane, load::RecordedLoad, plane::store::PlaneStore, transcript::shell_commands};

use crate::passes::{assert_replaced, is_at_rest, members, run_until, settle};

const PAGE: &str = "docs/operations.md";
const SECTION: &str = ".. one etcd member is lost";
/// The machine in the documentation.
const EXAMPLE: &str = "hv-2";

/// The machine of the leader loses its power, and a person does what the documentation says. Its member is replaced. When it returns, its member does not.
pub(crate) fn one_is_lost(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "machine-lost");
    load.wait_for_requests(100);
    let lost = PlaneStore::of(plane).leader().clone();
    let (name, before) = (lost.spec.name().unwrap().to_string(), members(plane));
    let machine = lost.spec.hypervisor.to_string();
    plane.power("stop", &machine);
    let drained = run_the_page(plane, &machine);
    run_until(plane, drained, "the member is replaced", |plane| {
        is_at_rest(plane) && members(plane).len() == before.len() && !members(plane).contains(&name)
    });
    load.wait_for_requests(50);

    plane.power("start", &machine);
    let without_mark = marked(plane, &machine, false);
    let usual = plane.keelway.run(&["hypervisor", "uncordon", &machine], &without_mark).succeeded().stdout;
    settle(plane, &usual);
    assert_replaced(plane, &name, &before);
    assert!(!plane.directory(&lost, "data").exists(), "the data of the old member is gone");
    load.wait_for_requests(50);
    load.end("a machine was lost for good, and returned").assert_good();
}

/// Runs the commands without a manager, up to those that reconcile, and returns the documents.
fn run_the_page(plane: &Plane<'_>, machine: &str) -> Vec<u8> {
    // The driver may write in this directory.
    let directory = plane.keelway.directory().join("nobody");
    fs::write(directory.join("c1.yaml"), marked(plane, machine, true)).unwrap();
    let commands = shell_commands(PAGE, SECTION);
    let own: Vec<&String> = commands.iter().filter(|command| command.starts_with("keelway ")).collect();
    let [drain, plan, reconcile] = own.as_slice() else { panic!("{commands:?}") };
    assert!(reconcile.starts_with("keelway reconcile < drained.yaml"), "{reconcile}");
    let run = |command: &str| {
        let command = command.replace(EXAMPLE, machine);
        plane.keelway.shell(&format!("cd nobody; {command}")).succeeded()
    };
    let _ = run(drain);
    let _ = run(plan);
    fs::read(directory.join("drained.yaml")).unwrap()
}

/// Returns the documents with this machine marked as lost, or not.
pub(crate) fn marked(plane: &Plane<'_>, machine: &str, lost: bool) -> Vec<u8> {
    let mut documents = Documents::read(&plane.text).unwrap();
    let name: HypervisorName = machine.parse().unwrap();
    let document = documents.hypervisors.get_mut(&name).unwrap();
    let annotations = document.metadata.annotations.get_or_insert_default();
    if lost {
        annotations.insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
    } else {
        annotations.remove(LOST_ANNOTATION);
    }
    documents.write().into_bytes()
}
