//! A component that is not healthy with the release of an upgrade.

use super::{World, calm, condition, runs, set_version, settled_at};

/// The components that run this release.
fn with_release(world: &World, version: &str) -> Vec<String> {
    let components = world.documents.components.iter().filter(|(_, component)| component.spec.version == version);
    components.map(|(pod, _)| pod.component.to_string()).collect()
}

#[test]
fn a_component_that_is_ill_with_its_new_release_stops_the_upgrade_until_the_previous_one_is_requested() {
    let mut world = settled_at("1.37.0");
    let before = world.digests();
    set_version(&mut world, "1.37.2");
    world.fails_with = Some(("kube-apiserver-0", "1.37.2"));
    let ill = world.pod("kube-apiserver-0");
    let is_reached = (0..60).any(|_| {
        let _ = world.pass(&calm(2, 2));
        world.digests()[&ill] != before[&ill]
    });
    assert!(is_reached, "{:?}", condition(&world, "KubernetesUpToDate"));

    // The members of etcd run the same image in both releases.
    let upgraded = ["etcd-0", "etcd-1", "etcd-2", "kube-apiserver-0"];
    for _ in 0..5 {
        let plan = world.pass(&calm(2, 2));
        assert_eq!(with_release(&world, "1.37.2"), upgraded);
        let others = || before.iter().filter(|(pod, _)| **pod != ill);
        assert!(others().all(|(pod, digest)| world.digests()[pod] == *digest), "nothing else is replaced");
        let waiting = plan.waiting.iter().find(|waiting| waiting.subject.to_string() == "c1/kube-apiserver-1").unwrap();
        assert!(waiting.blocker.to_string().contains("kube-apiserver-0 must be ready first"), "{waiting}");
        let (reason, message) = condition(&world, "KubernetesUpToDate").unwrap();
        assert_eq!(reason, "UpgradingKubernetes");
        assert!(message.contains("4 of") && message.ends_with("kube-apiserver-0 must be ready first"), "{message}");
        assert_eq!(runs(&world).as_deref(), Some("1.37.0"));
    }

    set_version(&mut world, "1.37.0");
    let is_settled = (0..60).any(|_| {
        let plan = world.pass(&calm(2, 2));
        plan.decisions.is_empty() && plan.waiting.is_empty()
    });
    assert!(is_settled, "{:?}", condition(&world, "KubernetesUpToDate"));
    assert_eq!(with_release(&world, "1.37.2"), [""; 0]);
    assert_eq!(world.digests(), before);
    assert_eq!(condition(&world, "KubernetesUpToDate"), None);
    assert_eq!(runs(&world).as_deref(), Some("1.37.0"));
}
