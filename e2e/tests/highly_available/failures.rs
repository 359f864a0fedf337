//! Failures, one at a time, while clients continue to send requests. Only the machines themselves recover from them, or a pass if there are no
//! agents.

use std::os::unix::fs::MetadataExt;

use keelway_api::{Component, role::Role};
use keelway_e2e::{Plane, RunningComponent, deadline, load::Load, machine::millis, plane::store::PlaneStore, process};

use crate::{
    status,
    unseen::{goes_on_without, is_settled_by_one_pass},
};

/// Kills the container process of each component with SIGKILL.
pub(crate) fn each_container(plane: &Plane<'_>, load: &Load) {
    for component in plane.components() {
        let before = plane.running(component).unwrap();
        process::kill(plane.machine(component).container_pid(&before.container));
        comes_back(plane, load, component, &format!("the container of {} was killed", name(component)), |now| {
            now.sandbox == before.sandbox && now.container != before.container
        });
    }
}

/// Kills the sandbox process of each component. The containers in it are stopped gracefully.
pub(crate) fn each_sandbox(plane: &Plane<'_>, load: &Load) {
    for component in plane.components() {
        let before = plane.running(component).unwrap();
        process::kill(plane.machine(component).sandbox_pid(&before.sandbox));
        comes_back(plane, load, component, &format!("the sandbox of {} was killed", name(component)), |now| {
            now.sandbox != before.sandbox
        });
    }
}

/// Kills one sandbox process of each role, all at once.
pub(crate) fn a_sandbox_of_each_role(plane: &Plane<'_>, load: &Load) {
    // A cluster has no component of the roles of fleets.
    let victims: Vec<&Component> =
        Role::ALL.into_iter().filter_map(|role| plane.of_role(role).into_iter().next()).collect();
    let before: Vec<RunningComponent> = victims.iter().map(|component| plane.running(component).unwrap()).collect();
    for (component, running) in victims.iter().zip(&before) {
        process::kill(plane.machine(component).sandbox_pid(&running.sandbox));
    }
    let what = "a sandbox of each role was killed";
    plane.help();
    let is_new = |(component, before): (&&Component, &RunningComponent)| {
        plane.running(component).is_some_and(|now| now.sandbox != before.sandbox)
    };
    let took = deadline::until(what, deadline::KUBERNETES, || victims.iter().zip(&before).all(is_new));
    println!("{}  until all ran again: {what}", millis(took));
    plane.is_whole_again(what);
    load.wait_for_requests(20);
    load.lap(what).assert_good();
}

/// Kills all containers and sandboxes of one role on one machine, of all clusters.
pub(crate) fn a_role_on_one_machine(plane: &Plane<'_>, load: &Load) {
    for role in Role::ALL.into_iter().filter(|role| !plane.of_role(*role).is_empty()) {
        let of_role = plane.documents.components.values().filter(|c| c.spec.role == role);
        let all: Vec<&Component> = of_role.map(|component| &**component).collect();
        let beside =
            |component: &&&Component| all.iter().filter(|c| c.spec.hypervisor == component.spec.hypervisor).count();
        let crowded = &all.iter().max_by_key(beside).unwrap().spec.hypervisor;
        let victims: Vec<&Component> = all.iter().copied().filter(|c| c.spec.hypervisor == *crowded).collect();
        let before: Vec<RunningComponent> = victims.iter().map(|component| plane.running(component).unwrap()).collect();
        process::kill_all(victims.iter().zip(&before).flat_map(|(component, running)| {
            let machine = plane.machine(component);
            [machine.sandbox_pid(&running.sandbox), machine.container_pid(&running.container)]
        }));
        let what = format!("all {} of {role} on one machine were killed", victims.len());
        plane.help();
        let back = || {
            let new = |(component, before): (&&Component, &RunningComponent)| {
                plane.running(component).is_some_and(|now| now.sandbox != before.sandbox)
            };
            victims.iter().zip(&before).all(new)
        };
        deadline::until(&what, deadline::KUBERNETES, back);
        plane.is_whole_again(&what);
        load.wait_for_requests(20);
        load.lap(&what).assert_good();
    }
}

fn name(component: &Component) -> String {
    component.spec.name().unwrap().to_string()
}

fn comes_back(
    plane: &Plane<'_>,
    load: &Load,
    component: &Component,
    what: &str,
    is_new: impl Fn(&RunningComponent) -> bool,
) {
    plane.help();
    let back = || plane.running(component).is_some_and(|now| is_new(&now));
    let took = deadline::until(what, deadline::KUBERNETES, back);
    println!("{}  until it ran again: {what}", millis(took));
    plane.is_whole_again(what);
    load.wait_for_requests(20);
    load.lap(what).assert_good();
}

/// A private machine with the etcd leader loses its power, which returns much later.
pub(crate) fn private_machine(plane: &mut Plane<'_>, load: &Load) {
    let (leader, written) = {
        let store = PlaneStore::of(plane);
        let leader = store.leader().clone();
        let written = store.revision(&leader).unwrap();
        (leader, written)
    };
    let away = leader.spec.hypervisor.to_string();
    let data = |plane: &Plane<'_>| plane.directory(&leader, "data/member").metadata().unwrap().ino();
    let before = data(plane);
    plane.power("stop", &away);
    status::shows_what_is_away(plane, &away);
    goes_on_without(plane, &away);
    load.lap("a private machine lost its power").assert_good();

    plane.power("start", &away);
    plane.is_whole_again("a private machine is back");
    assert_eq!(data(plane), before, "the member's data is the same");
    PlaneStore::of(plane).reaches(&leader, written);
    is_settled_by_one_pass(plane, &away);
    load.lap("it got its power back").assert_good();
}

/// A public machine loses its power. Clients use the other address.
pub(crate) fn public_machine(plane: &Plane<'_>, load: &Load) {
    let away = plane.of_role(Role::Ingress)[0].spec.hypervisor.to_string();
    plane.power("stop", &away);
    // Enough requests for each worker of the load to use the lost machine, and to continue after that.
    load.wait_for_requests(600);
    load.lap("a public machine lost its power").assert_good();
    plane.power("start", &away);
    plane.is_whole_again("a public machine is back");
    load.lap("it got its power back").assert_good();
}
