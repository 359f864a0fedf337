//! `keelway plan` shows what an upgrade changes, and in which order. It happens like that.

use std::collections::BTreeMap;

use keelway_api::{jiff::Timestamp, name::ComponentName};
use keelway_planner::{Decision, Plan, UpgradeOrder, plan, upgrade_orders};

use super::{World, calm, set_version, settled_at};

fn shown(world: &World) -> Vec<UpgradeOrder> {
    let seen = world.observe(&calm(2, 2));
    let plan = plan(world.documents.clone(), &seen, Timestamp::UNIX_EPOCH).unwrap();
    upgrade_orders(&plan, &seen).unwrap()
}

/// The components whose release the plan changes, with that release.
fn upgraded(plan: &Plan) -> impl Iterator<Item = (String, String)> {
    plan.decisions.iter().filter_map(|decision| {
        let Decision::UpgradeComponent { component, to, .. } = decision else { return None };
        Some((component.component.to_string(), to.clone()))
    })
}

/// Returns the components whose release changed, in order, and the digests of the pods at the end.
fn run(world: &mut World) -> Vec<(String, String)> {
    let mut changed = Vec::new();
    for _ in 0..200 {
        let plan = world.pass(&calm(2, 2));
        changed.extend(upgraded(&plan));
        if plan.decisions.is_empty() && plan.waiting.is_empty() {
            return changed;
        }
    }
    panic!("not settled");
}

fn digests(world: &World) -> BTreeMap<String, String> {
    world.digests().into_iter().map(|(pod, digest)| (pod.component.to_string(), digest)).collect()
}

#[test]
fn a_patch_release_replaces_what_is_shown_in_that_order() {
    let mut world = settled_at("1.37.0");
    assert_eq!(shown(&world), []);
    set_version(&mut world, "1.37.2");
    let [order] = &shown(&world)[..] else { panic!("one upgrade") };
    let before = digests(&world);
    let happened = run(&mut world);
    let after = digests(&world);

    let names = |names: &[ComponentName]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
    let (replaced, unchanged) = (names(&order.replaced), names(&order.unchanged));
    let of = |shown: &[String]| -> Vec<String> {
        happened.iter().map(|(name, _)| name.clone()).filter(|name| shown.contains(name)).collect()
    };
    assert_eq!((of(&replaced), of(&unchanged)), (replaced.clone(), unchanged.clone()));
    assert_eq!(happened.len(), replaced.len() + unchanged.len());
    assert!(replaced.iter().all(|name| before[name] != after[name]), "{replaced:?}");
    assert!(unchanged.iter().all(|name| before[name] == after[name]), "{unchanged:?}");
    insta::assert_snapshot!(order, @"c1 from 1.37.0 to 1.37.2, one component at a time: kube-apiserver-0, kube-apiserver-1, kube-controller-manager-0, kube-controller-manager-1, kube-scheduler-0, kube-scheduler-1; not restarted: etcd-0, etcd-1, etcd-2, cluster-controller-0, cluster-controller-1, ingress-0, ingress-1, gateway-0, gateway-1");
    assert_eq!(shown(&world), []);
}

#[test]
fn an_upgrade_that_skips_minor_versions_is_shown_to_its_end() {
    let mut world = settled_at("1.35.4");
    set_version(&mut world, "1.37.0");
    world.documents.clusters.values_mut().next().unwrap().spec.workers.version = Some("1.37.0".to_owned());
    let orders = shown(&world);
    insta::assert_snapshot!(orders.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"), @r"
    c1 from 1.35.4 to 1.36.3, one component at a time: etcd-0, etcd-1, etcd-2, kube-apiserver-0, kube-apiserver-1, kube-controller-manager-0, kube-controller-manager-1, kube-scheduler-0, kube-scheduler-1, cluster-controller-0, cluster-controller-1, ingress-0, ingress-1, gateway-0, gateway-1
    c1 from 1.36.3 to 1.37.0, one component at a time: etcd-0, etcd-1, etcd-2, kube-apiserver-0, kube-apiserver-1, kube-controller-manager-0, kube-controller-manager-1, kube-scheduler-0, kube-scheduler-1; not restarted: cluster-controller-0, cluster-controller-1, ingress-0, ingress-1, gateway-0, gateway-1; then the kubelets of the workers, to 1.37.0
    ");

    // The first component of the way runs the next release.
    let _ = world.pass(&calm(2, 2));
    let rest = shown(&world);
    assert_eq!((rest[0].from, rest[0].to, rest.len()), (orders[0].from, orders[0].to, 2));
    let of_order = |order: &UpgradeOrder| -> Vec<(String, String)> {
        order.replaced.iter().map(|name| (name.to_string(), order.to.to_string())).collect()
    };
    let replaced: Vec<(String, String)> = rest.iter().flat_map(of_order).collect();
    let mut happened = run(&mut world);
    happened.retain(|step| replaced.contains(step));
    assert_eq!(happened, replaced);
}

#[test]
fn workers_of_a_patch_release_are_shown_after_the_control_plane() {
    let mut world = settled_at("1.37.0");
    let set_workers = |world: &mut World, version: &str| {
        world.documents.clusters.values_mut().next().unwrap().spec.workers.version = Some(version.to_owned());
    };
    set_version(&mut world, "1.37.2");
    set_workers(&mut world, "1.37.2");
    let [order] = &shown(&world)[..] else { panic!("one upgrade") };
    assert!(order.to_string().ends_with("; then the kubelets of the workers, to 1.37.2"), "{order}");

    // They run it already.
    set_workers(&mut world, "1.37.0");
    let [order] = &shown(&world)[..] else { panic!("one upgrade") };
    assert_eq!(order.workers, None);
}
