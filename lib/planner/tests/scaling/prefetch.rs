//! Images that machines fetch before an upgrade begins.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::name::HypervisorName;
use keelway_planner::{Plan, WaitBlocker, WaitKind, Waiting, machine_configs};

use super::{World, calm, condition, runs, set_version, settled_at, versions};

/// A settled cluster on machines that fetch images ahead, for which another release is requested.
fn upgraded(from: &str, to: &str) -> World {
    let mut world = settled_at(from);
    world.machines.values_mut().for_each(|state| state.prefetches = true);
    set_version(&mut world, to);
    world
}

/// The images that each machine is to fetch.
fn asked(world: &World) -> BTreeMap<HypervisorName, BTreeSet<String>> {
    let configs = machine_configs(&world.documents, &world.observe(&calm(2, 2))).unwrap();
    let images = |(name, config): (HypervisorName, keelway_api::machine::MachineConfig)| {
        (name, config.pods.into_values().flat_map(|pod| pod.prefetch).collect())
    };
    configs.into_iter().map(images).collect()
}

/// Each machine fetches what its config names.
fn fetch(world: &mut World) {
    for (name, images) in asked(world) {
        world.machines.get_mut(&name).unwrap().images.extend(images);
    }
}

fn waiting(plan: &Plan) -> Option<&Waiting> {
    let is_one =
        |blocker: &WaitBlocker| matches!(blocker, WaitBlocker::Prefetch { .. } | WaitBlocker::UpgradeOnFullDisk { .. });
    plan.waiting.iter().find(|waiting| is_one(&waiting.blocker))
}

fn kind(waiting: &Waiting) -> Option<WaitKind> {
    waiting.delays.as_ref().map(|(_, kind)| *kind)
}

#[test]
fn an_upgrade_begins_once_every_machine_has_its_images() {
    let mut world = upgraded("1.37.0", "1.37.2");
    let before = (world.digests(), versions(&world));
    for _ in 0..3 {
        let plan = world.pass(&calm(2, 2));
        let waiting = waiting(&plan).unwrap();
        assert_eq!(kind(waiting), Some(WaitKind::InProgress));
        assert!(waiting.blocker.to_string().contains("has to fetch registry.k8s.io/"), "{}", waiting.blocker);
    }
    assert_eq!((world.digests(), versions(&world)), before);
    // A config names what the components of its machine need, and no other image.
    let images: BTreeSet<String> = asked(&world).into_values().flatten().collect();
    let tags = ["etcd:3.7.0-0", "kube-apiserver:v1.37.2", "kube-controller-manager:v1.37.2", "kube-scheduler:v1.37.2"];
    let expected = tags.into_iter().chain(["pause:3.10.2"]).map(|name| format!("registry.k8s.io/{name}"));
    assert_eq!(images, expected.collect());

    fetch(&mut world);
    for _ in 0..60 {
        let plan = world.pass(&calm(2, 2));
        assert!(waiting(&plan).is_none(), "{:?}", plan.waiting);
    }
    assert_eq!(runs(&world).as_deref(), Some("1.37.2"));
    assert!(asked(&world).into_values().all(|images| images.is_empty()));
}

#[test]
fn each_minor_version_on_the_way_fetches_its_own_images() {
    let mut world = upgraded("1.35.4", "1.37.0");
    let mut fetched = BTreeSet::new();
    for _ in 0..200 {
        let _ = world.pass(&calm(2, 2));
        fetched.extend(asked(&world).into_values().flatten().filter(|image| image.contains("/kube-apiserver:")));
        fetch(&mut world);
    }
    assert_eq!(runs(&world).as_deref(), Some("1.37.0"));
    assert_eq!(fetched, ["1.36.3", "1.37.0"].map(|it| format!("registry.k8s.io/kube-apiserver:v{it}")).into());
}

#[test]
fn an_image_that_cannot_be_fetched_is_a_finding() {
    let mut world = upgraded("1.37.0", "1.37.2");
    let _ = world.pass(&calm(2, 2));
    fetch(&mut world);
    let image = "registry.k8s.io/kube-scheduler:v1.37.2";
    let lacks = |name: &&HypervisorName| asked(&world)[*name].contains(image);
    let machine = world.machines.keys().find(lacks).unwrap().clone();
    let state = world.machines.get_mut(&machine).unwrap();
    state.images.remove(image);
    state.failures.push(format!("cannot fetch image {image}: the registry has no such image"));
    let before = versions(&world);
    let plan = world.pass(&calm(2, 2));
    let found = waiting(&plan).unwrap();
    let text = found.blocker.to_string();
    assert_eq!(kind(found), Some(WaitKind::Blocked));
    assert!(text.contains(machine.as_str()) && text.contains("no such image"), "{text}");
    let (reason, message) = condition(&world, "KubernetesUpToDate").unwrap();
    assert!(reason == "PreflightFailed" && message.contains("no such image"), "{reason} {message}");
    assert_eq!(versions(&world), before);
}

#[test]
fn an_upgrade_does_not_begin_on_a_full_disk() {
    let mut world = upgraded("1.37.0", "1.37.2");
    let machine = world.documents.components.values().next().unwrap().spec.hypervisor.clone();
    world.machines.get_mut(&machine).unwrap().disk_pressure = true;
    let before = versions(&world);
    let plan = world.pass(&calm(2, 2));
    let found = waiting(&plan).unwrap();
    assert_eq!(kind(found), Some(WaitKind::Blocked));
    assert!(found.blocker.to_string().contains(machine.as_str()), "{}", found.blocker);
    assert_eq!(versions(&world), before);
}

/// Agents of an earlier release do not fetch ahead. Each of them fetches its images before it replaces a component.
#[test]
fn machines_that_do_not_fetch_ahead_are_not_waited_for() {
    let mut world = upgraded("1.37.0", "1.37.2");
    world.machines.values_mut().for_each(|state| state.prefetches = false);
    let plan = world.pass(&calm(2, 2));
    assert!(waiting(&plan).is_none() && versions(&world).iter().any(|(_, version)| version == "1.37.2"));
    assert!(asked(&world).into_values().all(|images| images.is_empty()));
}
