//! The checks before an upgrade to the next minor version.

use keelway_api::{machine::ObservedValue, preflight::PreflightCheck};
use keelway_planner::{DeprecatedApi, Plan, UpgradePreflight, WaitBlocker, WaitKind, Waiting};

use super::{calm, condition, runs, set_version, settled_at, versions};

fn with_removed_api() -> UpgradePreflight {
    let api = DeprecatedApi { resource: "widgets.v1beta1.example.com".to_owned(), removed_in: 37 };
    UpgradePreflight { deprecated_apis: ObservedValue::Known([api].into()), ..UpgradePreflight::default() }
}

fn preflight(plan: &Plan) -> Option<&Waiting> {
    plan.waiting.iter().find(|waiting| matches!(waiting.blocker, WaitBlocker::Preflight(_)))
}

#[test]
fn a_finding_stops_an_upgrade_before_anything_changes() {
    let mut world = settled_at("1.36.3");
    set_version(&mut world, "1.37.0");
    world.preflight = with_removed_api();
    let before = world.digests();
    for _ in 0..3 {
        let plan = world.pass(&calm(2, 2));
        let waiting = preflight(&plan).unwrap();
        assert_eq!(waiting.delays.as_ref().map(|(_, kind)| *kind), Some(WaitKind::Blocked));
        assert!(waiting.blocker.to_string().contains("widgets.v1beta1.example.com"), "{}", waiting.blocker);
    }
    assert_eq!(world.digests(), before);
    let (reason, message) = condition(&world, "KubernetesUpToDate").unwrap();
    assert_eq!(reason, "PreflightFailed");
    assert!(message.contains("0 of") && message.contains("widgets.v1beta1.example.com"), "{message}");

    let spec = &mut world.documents.clusters.values_mut().next().unwrap().spec;
    spec.upgrade.ignore_preflight_errors = vec![PreflightCheck::DeprecatedApis];
    let plan = world.pass(&calm(2, 2));
    assert!(preflight(&plan).is_none() && versions(&world).iter().any(|(_, version)| version == "1.37.0"));
}

#[test]
fn a_cluster_that_cannot_be_checked_stays_as_it_is() {
    let mut world = settled_at("1.36.3");
    set_version(&mut world, "1.37.0");
    world.preflight.silent_webhooks = ObservedValue::unreachable("no response in time");
    let before = versions(&world);
    let plan = world.pass(&calm(2, 2));
    let waiting = preflight(&plan).unwrap();
    assert_eq!(waiting.delays.as_ref().map(|(_, kind)| *kind), Some(WaitKind::InProgress));
    assert!(waiting.blocker.to_string().contains("Webhooks: no response in time"), "{}", waiting.blocker);
    assert_eq!(versions(&world), before);

    let spec = &mut world.documents.clusters.values_mut().next().unwrap().spec;
    spec.upgrade.ignore_preflight_errors = vec![PreflightCheck::Webhooks];
    let plan = world.pass(&calm(2, 2));
    assert!(preflight(&plan).is_none(), "{:?}", plan.waiting);
}

#[test]
fn an_upgrade_that_has_begun_continues() {
    let mut world = settled_at("1.36.3");
    set_version(&mut world, "1.37.0");
    let _ = world.pass(&calm(2, 2));
    world.preflight = with_removed_api();
    for _ in 0..60 {
        let plan = world.pass(&calm(2, 2));
        assert!(preflight(&plan).is_none(), "{:?}", plan.waiting);
    }
    assert_eq!(runs(&world).as_deref(), Some("1.37.0"));
}

/// A patch release serves the same APIs.
#[test]
fn a_patch_release_needs_no_check() {
    let mut world = settled_at("1.37.0");
    set_version(&mut world, "1.37.2");
    world.preflight = with_removed_api();
    for _ in 0..60 {
        let plan = world.pass(&calm(2, 2));
        assert!(preflight(&plan).is_none(), "{:?}", plan.waiting);
    }
    assert_eq!(runs(&world).as_deref(), Some("1.37.2"));
}
