//! Machines that are lost for good.

use keelway_api::{Documents, hypervisor::LOST_ANNOTATION, name::HypervisorName};
use keelway_e2e::{Plane, load::RecordedLoad, plane::store::PlaneStore};

use crate::passes::{assert_replaced, is_at_rest, members, run_until, settle};

/// The machine of the leader loses its power, and a person marks it as lost. Its member is replaced. When it returns, its member does not.
pub(crate) fn one_is_lost(plane: &mut Plane<'_>) {
    let load = RecordedLoad::start(&plane.kubectl, "machine-lost");
    load.wait_for_requests(100);
    let lost = PlaneStore::of(plane).leader().clone();
    let (name, before) = (lost.spec.name().unwrap().to_string(), members(plane));
    let machine = lost.spec.hypervisor.to_string();
    plane.power("stop", &machine);
    let with_mark = marked(plane, &machine, true);
    run_until(plane, with_mark, "the member is replaced", |plane| {
        is_at_rest(plane) && members(plane).len() == before.len() && !members(plane).contains(&name)
    });
    load.wait_for_requests(50);

    plane.power("start", &machine);
    let without_mark = marked(plane, &machine, false);
    settle(plane, &without_mark);
    assert_replaced(plane, &name, &before);
    assert!(!plane.directory(&lost, "data").exists(), "the data of the old member is gone");
    load.wait_for_requests(50);
    load.end("a machine was lost for good, and returned").assert_good();
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
