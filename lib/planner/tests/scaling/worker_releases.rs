//! Workers follow the control plane: the cluster-controllers get the release of the kubelets once every other component has followed.

use keelway_api::machine::ObservedValue;

use super::{World, calm, condition, runs, set_version, settled_at, versions};

fn set_workers(world: &mut World, version: &str) {
    world.documents.clusters.values_mut().next().unwrap().spec.workers.version = Some(version.to_owned());
}

/// The release to which a cluster-controller upgrades kubelets.
fn of_kubelets(world: &World, controller: &str) -> Option<String> {
    let file = world.document(controller, "cluster-controller.json");
    Some(file.get("kubelets")?["version"].as_str().unwrap().to_owned())
}

/// Passes until nothing is left to do. Kubelets begin in none before every component runs the release.
fn follow(world: &mut World, release: &str) {
    for _ in 0..200 {
        let plan = world.pass(&calm(2, 2));
        let ordered = ["cluster-controller-0", "cluster-controller-1"].map(|name| of_kubelets(world, name));
        let is_complete = versions(world).iter().all(|(_, version)| version == release);
        let is_recorded = runs(world).as_deref() == Some(release);
        let expected = (is_complete && is_recorded).then(|| release.to_owned());
        assert_eq!(ordered, [expected.clone(), expected.clone()], "{:?}", versions(world));
        if plan.decisions.is_empty() && plan.waiting.is_empty() {
            assert!(expected.is_some(), "{:?}", condition(world, "KubernetesUpToDate"));
            return;
        }
    }
    panic!("not settled");
}

#[test]
fn kubelets_begin_once_every_component_runs_the_release() {
    for [from, to] in [["1.36.3", "1.37.0"], ["1.37.0", "1.37.2"], ["1.37.2", "1.37.0"]] {
        let mut world = settled_at(from);
        set_version(&mut world, to);
        set_workers(&mut world, to);
        follow(&mut world, to);
    }
}

/// Gateways are the last components that change.
#[test]
fn kubelets_wait_for_a_component_that_does_not_work() {
    let mut world = settled_at("1.37.0");
    set_version(&mut world, "1.37.2");
    set_workers(&mut world, "1.37.2");
    world.fails_with = Some(("gateway-1", "1.37.2"));
    for _ in 0..60 {
        let _ = world.pass(&calm(2, 2));
        assert_eq!(of_kubelets(&world, "cluster-controller-0"), None);
    }
    assert!(versions(&world).iter().all(|(_, version)| version == "1.37.2"));
    world.fails_with = None;
    follow(&mut world, "1.37.2");
}

/// They may be what the next minor version waits for.
#[test]
fn kubelets_of_the_previous_minor_version_are_upgraded_before_the_next_one_begins() {
    let mut world = settled_at("1.36.3");
    world.preflight.kubelets = ObservedValue::unreachable("no response in time");
    set_version(&mut world, "1.37.0");
    set_workers(&mut world, "1.36.2");
    for _ in 0..3 {
        let _ = world.pass(&calm(2, 2));
        assert_eq!(condition(&world, "KubernetesUpToDate").unwrap().0, "UpgradingKubernetes");
        assert_eq!(of_kubelets(&world, "cluster-controller-0").as_deref(), Some("1.36.2"));
    }
}

/// The file is read again when it changes.
#[test]
fn a_release_of_kubelets_restarts_nothing() {
    let mut world = settled_at("1.37.0");
    let before = world.digests();
    set_workers(&mut world, "1.37.0");
    let _ = world.pass(&calm(2, 2));
    assert_eq!(of_kubelets(&world, "cluster-controller-0").as_deref(), Some("1.37.0"));
    assert_eq!(world.digests(), before);
}
