//! From a Placement to changes of Works.

use keelway_fleet::{
    DesiredWork, ExistingWork, MAX_MANIFEST_BYTES, ObjectState, PlacementLink, PodReadiness, WorkOrder, WorkPlan,
    WorkRemoval, WorkWait, desired_works, invariants::check_works, placement_link, plan_works,
};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, object, parsed, policy};

fn spread_over_two() -> (World, Json) {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("even", json!({ "spreadConstraints": {} }))]);
    let web = deployment("web", 4, json!({}), json!({}));
    world.place(&web);
    (world, web)
}

fn link(web: &Json) -> PlacementLink {
    placement_link(&parsed(web).reference)
}

fn existing(work: DesiredWork, is_applied: bool) -> ExistingWork {
    ExistingWork {
        cluster: work.cluster,
        name: work.name,
        spec: work.spec,
        is_applied,
        pods: PodReadiness { is_ready: true, is_serving: true },
        is_deleting: false,
    }
}

fn all_existing(world: &World, web: &Json) -> Vec<ExistingWork> {
    let works = desired_works(&parsed(web), world.current.as_ref().unwrap(), false);
    works.into_iter().map(|work| existing(work.unwrap(), true)).collect()
}

fn plan(world: &World, web: &Json, works: &[ExistingWork]) -> WorkPlan {
    let state = ObjectState::Present(parsed(web));
    let plan = plan_works(&state, false, world.current.as_ref(), &link(web), works);
    assert_eq!(check_works(world.current.as_ref(), false, works, &plan), []);
    plan
}

fn texts(plan: &WorkPlan) -> Vec<String> {
    let one = |order: &WorkOrder| match order {
        WorkOrder::Create(work) => format!("create {}", work.cluster),
        WorkOrder::Update(work) => format!("update {}", work.cluster),
        WorkOrder::Delete { cluster, why, .. } => format!("delete {cluster}: {why:?}"),
    };
    plan.orders.iter().map(one).collect()
}

#[test]
fn works_are_created_then_updated_then_left_alone() {
    let (mut world, web) = spread_over_two();
    assert_eq!(texts(&plan(&world, &web, &[])), ["create a", "create b"]);
    let works = all_existing(&world, &web);
    assert_eq!(plan(&world, &web, &works), WorkPlan::default());
    let more = deployment("web", 5, json!({}), json!({}));
    world.place(&more);
    assert_eq!(texts(&plan(&world, &more, &works)), ["update a"]);
}

#[test]
fn a_moved_object_stays_until_each_new_cluster_has_applied_it() {
    let (mut world, web) = spread_over_two();
    let old = all_existing(&world, &web);
    world.fleet.clusters.insert("c".to_owned(), cluster("c"));
    let named = |names: &[&str]| {
        json!({ "clusterSelector": { "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": names }] },
                "spreadConstraints": {} })
    };
    world.set_policies([policy("even", named(&["b", "c"]))]);
    world.place(&web);
    let first = plan(&world, &web, &old);
    assert_eq!(texts(&first), ["create c"]);
    assert_eq!(first.waiting, [WorkWait::NotAppliedYet { keeps: "a".to_owned(), missing: "c".to_owned() }]);
    let mut works = all_existing(&world, &web);
    works.push(old[0].clone());
    works[1].is_applied = false;
    assert_eq!(texts(&plan(&world, &web, &works)), [""; 0]);
    works[1].is_applied = true;
    assert_eq!(texts(&plan(&world, &web, &works)), ["delete a: Moved"]);
}

/// An object of two clusters that leaves `a`, with its Works in `a` and `b`.
fn leaving() -> (World, Json, Vec<ExistingWork>) {
    let (mut world, web) = spread_over_two();
    let old = all_existing(&world, &web);
    world.set_policies([policy(
        "one",
        json!({ "clusterSelector": { "matchLabels": { "kubernetes.io/metadata.name": "b" } } }),
    )]);
    world.place(&web);
    let mut works = all_existing(&world, &web);
    works.push(old[0].clone());
    (world, web, works)
}

#[test]
fn a_moved_object_stays_until_its_pods_are_ready_elsewhere() {
    let (world, web, mut works) = leaving();
    works[0].pods.is_ready = false;
    let waits = plan(&world, &web, &works);
    assert_eq!(texts(&waits), [""; 0]);
    assert_eq!(waits.moving().unwrap().message, "the object leaves a once its pods are ready in b");
    works[0].pods.is_ready = true;
    assert_eq!(texts(&plan(&world, &web, &works)), ["delete a: Moved"]);
    works[1].is_deleting = true;
    assert_eq!(plan(&world, &web, &works).moving().unwrap().message, "the agent of a deletes the object there");
    works.truncate(1);
    assert_eq!(plan(&world, &web, &works).moving(), None);
}

#[test]
fn a_plan_that_does_not_wait_for_pods_is_a_violation() {
    let (world, web, mut works) = leaving();
    let hasty = plan(&world, &web, &works);
    works[0].pods.is_ready = false;
    assert_eq!(check_works(world.current.as_ref(), false, &works, &hasty).len(), 1);
    works[1].pods.is_serving = false;
    assert_eq!(check_works(world.current.as_ref(), false, &works, &hasty), []);
}

#[test]
fn an_object_without_a_ready_pod_does_not_wait_for_one() {
    let (world, web, mut works) = leaving();
    (works[0].pods.is_ready, works[1].pods.is_serving) = (false, false);
    assert_eq!(texts(&plan(&world, &web, &works)), ["delete a: Moved"]);
}

#[test]
fn a_deleted_object_is_deleted_in_every_cluster() {
    let (world, mut web) = spread_over_two();
    let works = all_existing(&world, &web);
    web["metadata"]["deletionTimestamp"] = json!("2026-11-27T08:00:00Z");
    let deleting = ObjectState::Present(parsed(&web));
    for state in [deleting, ObjectState::Deleted] {
        let plan = plan_works(&state, false, None, &link(&web), &works);
        assert_eq!(texts(&plan), ["delete a: ObjectDeleted", "delete b: ObjectDeleted"]);
    }
}

#[test]
fn what_cannot_be_read_deletes_nothing() {
    let (world, web) = spread_over_two();
    let works = all_existing(&world, &web);
    let unreadable = ObjectState::Unreadable("connection refused".to_owned());
    let placement = world.current.as_ref();
    assert!(plan_works(&unreadable, false, placement, &link(&web), &works).orders.is_empty());
    let present = ObjectState::Present(parsed(&web));
    assert!(plan_works(&present, false, None, &link(&web), &works).orders.is_empty());
    let mut nowhere = world.current.clone().unwrap();
    nowhere.clusters.clear();
    assert!(plan_works(&present, false, Some(&nowhere), &link(&web), &works).orders.is_empty());
}

#[test]
fn an_override_that_does_not_fit_stops_only_its_cluster() {
    let (mut world, web) = spread_over_two();
    let works = all_existing(&world, &web);
    let overrides = json!([{ "topologyValue": "a", "resources": [{ "group": "apps", "kind": "Deployment", "name": "web", "override": [
        { "fieldPath": "spec.template.spec.containers[3].image", "value": { "staticValue": "x" } } ] }] }]);
    world.set_policies([policy("even", json!({ "spreadConstraints": { "overrides": overrides } }))]);
    let more = deployment("web", 6, json!({}), json!({}));
    world.place(&more);
    let plan = plan(&world, &more, &works);
    assert_eq!(texts(&plan), ["update b"]);
    let [WorkWait::Manifest(error)] = plan.waiting.as_slice() else { panic!("{:?}", plan.waiting) };
    assert_eq!(
        error.to_string(),
        "the override of spec.template.spec.containers[3].image for the cluster a cannot be applied"
    );
    let fault = &plan.faults()["a"];
    assert_eq!(fault.reason, "OverrideFailed");
    assert!(fault.message.starts_with("the override of spec.template.spec.containers[3].image: "), "{}", fault.message);
}

#[test]
fn an_object_that_is_too_large_for_a_work_is_not_distributed() {
    let mut world = World::new([cluster("a")]);
    world.set_policies([policy("one", json!({}))]);
    let config = |text: &str| {
        let mut config = object("v1", "ConfigMap", Some("default"), "x");
        config["data"] = json!({ "text": text });
        config
    };
    // As much data as Kubernetes allows fits, unless it doubles in JSON.
    let largest = 1024 * 1024;
    let fits = config(&"a".repeat(largest));
    world.place(&fits);
    let works = all_existing(&world, &fits);
    assert!(plan(&world, &config(&"<".repeat(largest / 5)), &works).faults().is_empty());
    assert_eq!(plan(&world, &config(&"<".repeat(largest / 4)), &works).faults()["a"].reason, "TooLarge");
    let doubled = config(&"\n".repeat(largest));
    let refused = plan(&world, &doubled, &works);
    assert!(refused.orders.is_empty(), "what runs in the cluster stays");
    let fault = &refused.faults()["a"];
    assert_eq!(fault.reason, "TooLarge");
    let size = doubled.to_string().len();
    assert!(size > MAX_MANIFEST_BYTES && fault.message.contains("bytes in JSON"), "{}", fault.message);
}

#[test]
fn the_work_of_another_placement_is_never_changed() {
    let (world, web) = spread_over_two();
    let mut works = all_existing(&world, &web);
    works[0].spec.placement.name = "other".to_owned();
    let changed = plan(&world, &web, &works);
    assert!(changed.orders.is_empty());
    assert!(matches!(changed.waiting.as_slice(), [WorkWait::NameTaken { .. }]));
    assert_eq!(changed.faults()["a"].message, "the Work deployment.apps.default.web belongs to another Placement");
    let gone = plan_works(&ObjectState::Deleted, false, None, &link(&web), &works);
    let [WorkOrder::Delete { cluster, why, .. }] = gone.orders.as_slice() else { panic!() };
    assert_eq!((cluster.as_str(), *why), ("b", WorkRemoval::ObjectDeleted));
}
