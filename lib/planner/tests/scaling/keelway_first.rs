//! An upgrade of Kubernetes while the cluster waits for its wave of a release of Keelway, whose own components may not know the new version.

use std::collections::BTreeSet;

use keelway_api::{Documents, cluster::KeelwayStatus, jiff::Timestamp, release::KEELWAY, role::Role};
use keelway_planner::{
    Neighbours, Plan, PlanScope, WaitBlocker, WaitKind, Waiting, Waves, invariants, machine_configs, plan_part,
};

use super::{World, calm, condition, runs, set_version, settled_at, versions};
use crate::model::{apply, mint};

/// The cluster of the first wave.
fn first(is_healthy: bool) -> Documents {
    let conditions =
        "{type: Available, status: 'True', reason: Serving, message: '', lastTransitionTime: 2026-01-01T00:00:00Z}";
    let conditions = if is_healthy { conditions } else { "" };
    let text = format!(
        "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c0, namespace: default}}\nspec: {{version: 1.37.0}}\n\
         status: {{id: '0000000000000001', keelway: {{version: {KEELWAY}, previousVersion: v0.0.9}}, conditions: [{conditions}]}}\n"
    );
    Documents::read(text.as_bytes()).unwrap()
}

/// A manager's pass for the cluster, and its effect on the machines.
fn pass_beside(world: &mut World, first: &Documents) -> Plan {
    let seen = world.observe(&calm(2, 2));
    let mut all = world.documents.clone();
    all.clusters.extend(first.clusters.clone());
    let (users, waves) = (BTreeSet::new(), Waves::default());
    let part = PlanScope::Cluster(Neighbours { documents: &all, users: &users, waves: &waves });
    let mut plan = plan_part(world.documents.clone(), part, &seen, Timestamp::UNIX_EPOCH).unwrap();
    mint(&mut plan, &mut world.certificates);
    assert_eq!(invariants::check(&world.documents, &plan.documents, &seen), []);
    world.documents = plan.documents.clone();
    for (name, config) in machine_configs(&world.documents, &seen).unwrap() {
        apply(world.machines.get_mut(&name).unwrap(), &config);
    }
    plan
}

fn wait_for_keelway(plan: &Plan) -> Option<&Waiting> {
    plan.waiting.iter().find(|waiting| matches!(waiting.blocker, WaitBlocker::UpgradeAfterKeelway { .. }))
}

#[test]
fn the_components_of_keelway_follow_a_release_of_kubernetes_after_their_own() {
    let mut world = settled_at("1.36.3");
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    let earlier = KeelwayStatus { version: "v0.0.9".to_owned(), previous_version: None };
    cluster.status.as_mut().unwrap().keelway = Some(earlier);
    for _ in 0..12 {
        let _ = pass_beside(&mut world, &first(false));
    }
    set_version(&mut world, "1.37.0");
    let is_reached = (0..60).any(|_| wait_for_keelway(&pass_beside(&mut world, &first(false))).is_some());
    assert!(is_reached, "{:?}", condition(&world, "KubernetesUpToDate"));
    for _ in 0..3 {
        let plan = pass_beside(&mut world, &first(false));
        let waiting = wait_for_keelway(&plan).unwrap();
        let text = format!(
            "c1/cluster-controller-0 waits for its turn to run 1.37.0: Keelway's components of the cluster must run {KEELWAY} first"
        );
        assert_eq!(waiting.to_string(), text);
        assert_eq!(waiting.delays.as_ref().map(|(_, kind)| *kind), Some(WaitKind::InProgress));
        for (role, version) in versions(&world) {
            let is_upgraded = role < Role::ClusterController;
            assert_eq!(version, if is_upgraded { "1.37.0" } else { "1.36.3" }, "{role}");
        }
        let (reason, message) = condition(&world, "KubernetesUpToDate").unwrap();
        assert_eq!(reason, "UpgradingKubernetes");
        assert!(message.ends_with(&format!("must run {KEELWAY} first")), "{message}");
        assert_eq!(runs(&world).as_deref(), Some("1.36.3"));
    }

    let mut passes = 0;
    while runs(&world).as_deref() != Some("1.37.0") {
        let plan = pass_beside(&mut world, &first(true));
        assert!(wait_for_keelway(&plan).is_none(), "its wave has begun");
        passes += 1;
        assert!(passes < 60, "it ends: {:?}", condition(&world, "KubernetesUpToDate"));
    }
    assert!(versions(&world).iter().all(|(_, version)| version == "1.37.0"));
    assert_eq!(world.documents.clusters.values().next().unwrap().keelway_version(), KEELWAY);
}
