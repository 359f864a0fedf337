//! Another patch release under load. Its images are those of the first one under another tag.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use keelway_api::{Documents, release::Release, role::Role};
use keelway_e2e::{
    Plane, deadline,
    load::Load,
    machine::millis,
    patch_release::{PATCHED_ROLES, patch_releases, tag_patched_images},
};

/// Nothing changes until every machine with an agent has its images. Then components are replaced one after the other, and no request fails.
pub(crate) fn to_the_next_patch_release(plane: &mut Plane<'_>) {
    let (before, after) = patch_releases();
    let last = plane.machine(plane.of_role(Role::KubeApiserver).last().unwrap()).name().to_owned();
    for machine in plane.machines.iter().filter(|machine| !machine.is_public() && machine.name() != last) {
        tag_patched_images(machine, before, after);
    }
    if plane.documents.hypervisors.values().all(|machine| machine.spec.endpoint.has_agent()) {
        is_stopped_by(plane, &last, after);
    }
    tag_patched_images(plane.machine_named(&last), before, after);
    changes(plane, before, after);
}

/// The upgrade does not begin, because a machine cannot fetch an image.
fn is_stopped_by(plane: &mut Plane<'_>, machine: &str, to: Release) {
    let (to, text, pids) = (to.to_string(), plane.text.clone(), plane.pids());
    let upgraded = plane.keelway.run(&["cluster", "upgrade", "--name", "c1", "--to", &to], &text);
    let text = RefCell::new(upgraded.succeeded().stdout);
    let expected = format!("{machine} has to fetch registry.k8s.io/kube-");
    deadline::until("the machine without images is named", deadline::SETTLE, || {
        let reconciled = plane.keelway.run(&["reconcile", "--once"], &text.borrow());
        let documents = Documents::read(&reconciled.stdout).unwrap();
        text.replace(reconciled.stdout);
        let mut conditions =
            documents.clusters.values().flat_map(|cluster| &cluster.status.as_ref().unwrap().conditions);
        conditions.any(|found| found.reason == "PreflightFailed" && found.message.contains(&expected))
    });
    plane.take(text.into_inner());
    assert_eq!(plane.pids(), pids, "a component was restarted");
}

/// The same in the other direction.
pub(crate) fn to_the_previous_patch_release(plane: &mut Plane<'_>) {
    let (before, after) = patch_releases();
    changes(plane, after, before);
}

fn changes(plane: &mut Plane<'_>, from: Release, to: Release) {
    let (from, to) = (from.to_string(), to.to_string());
    let others = pids(plane, |role| !PATCHED_ROLES.contains(&role));
    let load = Load::start(&plane.kubectl);
    let upgraded = plane.keelway.run(&["cluster", "upgrade", "--name", "c1", "--to", &to], &plane.text);
    let upgraded = upgraded.succeeded().stdout;
    let plan = plane.plan(&upgraded);
    assert!(plan.contains(&format!("from {from} to {to}")), "{plan}");
    let started = Instant::now();
    plane.apply(&upgraded);
    println!("{}  from Kubernetes {from} to {to}", millis(started.elapsed()));
    load.end().assert_good();
    assert_eq!(plane.cluster().status.as_ref().unwrap().version.as_deref(), Some(to.as_str()));
    let images: BTreeSet<String> = PATCHED_ROLES
        .iter()
        .flat_map(|role| plane.of_role(*role))
        .map(|component| plane.running(component).unwrap().image)
        .collect();
    assert_eq!(images.len(), PATCHED_ROLES.len(), "{images:?}");
    assert!(images.iter().all(|image| image.ends_with(&format!(":v{to}"))), "{images:?}");
    assert_eq!(pids(plane, |role| !PATCHED_ROLES.contains(&role)), others, "another component was restarted");
}

fn pids(plane: &Plane<'_>, is_asked: impl Fn(Role) -> bool) -> BTreeMap<String, u32> {
    let roles = Role::ALL.into_iter().filter(|role| is_asked(*role));
    let names: BTreeSet<String> =
        roles.flat_map(|role| plane.of_role(role)).map(|found| found.spec.name().unwrap().to_string()).collect();
    plane.pids().into_iter().filter(|(name, _)| names.contains(name)).collect()
}
