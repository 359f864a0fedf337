//! The conformance cases of fleets: policies, divisions and overrides as users write them.

use crate::world::{World, cluster, deployment, labelled, object, policy};
use keelway_fleet::{DivisionPart, PlacementOutcome, divide};
use serde_json::json;

#[test]
fn case_1_an_annotation_spreads_over_clusters() {
    let mut world = World::new([cluster("a"), cluster("b"), cluster("c")]);
    let web = deployment("web", 2, json!({}), json!({ "fleet.keelway.dev/spread-onto": "a,b" }));
    assert_eq!(world.placed(&web), [("a", Some(1)), ("b", Some(1))]);
    assert_eq!(world.reason("c"), "NotNamed");
}

#[test]
fn case_2_replicas_are_divided_evenly_and_by_percentage() {
    let mut world = World::new([cluster("c1"), cluster("c2")]);
    let web = deployment("web", 10, json!({}), json!({}));
    world.set_policies([policy("split", json!({ "spreadConstraints": {} }))]);
    assert_eq!(world.placed(&web), [("c1", Some(5)), ("c2", Some(5))]);
    world.set_policies([split("c1", 20, "c2", 80)]);
    assert_eq!(world.placed(&web), [("c1", Some(2)), ("c2", Some(8))]);
    world.set_policies([split("c1", 50, "c2", 50)]);
    assert_eq!(world.placed(&web), [("c1", Some(5)), ("c2", Some(5))]);
    world.set_policies([split("c1", 100, "c2", 0)]);
    let account = object("v1", "ServiceAccount", Some("default"), "web");
    assert_eq!(world.placed(&account), [("c1", None), ("c2", None)]);
}

fn split(one: &str, share: u32, other: &str, rest: u32) -> keelway_fleet::SchedulePolicy {
    let shares = json!([{ "topologyValue": one, "percentage": share }, { "topologyValue": other, "percentage": rest }]);
    policy("split", json!({ "spreadConstraints": { "percentageSplit": shares } }))
}

#[test]
fn case_3_no_replica_is_lost_to_rounding() {
    let mut world = World::new([cluster("c1"), cluster("c2")]);
    world.set_policies([split("c1", 70, "c2", 30)]);
    let web = deployment("web", 5, json!({}), json!({}));
    assert_eq!(world.placed(&web), [("c1", Some(4)), ("c2", Some(1))]);
    assert_eq!(world.placed(&web), [("c1", Some(4)), ("c2", Some(1))]);
}

#[test]
fn case_4_shares_of_a_label_are_divided_among_its_clusters() {
    let version = |name, version| labelled(name, json!({ "fleet.keelway.dev/version": version }));
    let mut world =
        World::new([version("a", "1.36"), version("b", "1.36"), version("c", "1.36"), version("d", "1.37")]);
    let shares = json!([{ "topologyValue": "1.36", "percentage": 75 }, { "topologyValue": "1.37", "percentage": 25 }]);
    world.set_policies([policy(
        "canary",
        json!({ "spreadConstraints": { "topologyKey": "fleet.keelway.dev/version", "percentageSplit": shares } }),
    )]);
    let web = deployment("web", 8, json!({}), json!({}));
    assert_eq!(world.placed(&web), [("a", Some(2)), ("b", Some(2)), ("c", Some(2)), ("d", Some(2))]);
    let more = deployment("web", 10, json!({}), json!({}));
    // 7.5 and 2.5: a tie, which the larger share gets.
    assert_eq!(world.placed(&more), [("a", Some(3)), ("b", Some(3)), ("c", Some(2)), ("d", Some(2))]);
}

#[test]
fn case_10_copies_differ_in_overridden_fields() {
    let mut world = World::new([cluster("c1"), cluster("c2")]);
    let field = |path: &str, value: &str| json!({ "fieldPath": path, "value": { "staticValue": value } });
    let domain = |name: &str, net: &str| {
        json!({ "topologyValue": name, "resources": [
            { "kind": "Namespace", "name": "mesh", "override": [field("metadata.labels['topology.example.io/network']", net)] },
            { "group": "apps", "kind": "Deployment", "name": "web",
              "override": [field("spec.template.spec.containers[0].env[0].value", net)] },
        ] })
    };
    world.set_policies([policy(
        "mesh",
        json!({ "spreadConstraints": { "spreadMode": "Duplicate", "overrides": [domain("c1", "net-a"), domain("c2", "net-b")] } }),
    )]);
    let namespace = object("v1", "Namespace", None, "mesh");
    let manifests = world.manifests(&namespace);
    assert_eq!(manifests["c1"]["metadata"]["labels"]["topology.example.io/network"], "net-a");
    assert_eq!(manifests["c2"]["metadata"]["labels"]["topology.example.io/network"], "net-b");
    let mut web = deployment("web", 3, json!({}), json!({}));
    web["spec"]["template"]["spec"]["containers"] =
        json!([{ "name": "web", "env": [{ "name": "NET", "value": "none" }] }]);
    let manifests = world.manifests(&web);
    assert_eq!(manifests["c2"]["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"], "net-b");
    assert_eq!(manifests["c2"]["spec"]["replicas"], 3);
}

#[test]
fn case_13_empty_selectors_match_everything() {
    let mut world = World::new([cluster("a")]);
    world.set_policies([policy(
        "shop",
        json!({
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "shop" } },
            "resourceSelectors": { "labelSelectors": [{ "matchExpressions": [] }] },
        }),
    )]);
    for (kind, namespace, is_placed) in
        [("ConfigMap", Some("shop"), true), ("ConfigMap", Some("default"), false), ("PersistentVolume", None, true)]
    {
        let decision = world.decide(&object("v1", kind, namespace, "one"));
        let placed = matches!(decision.outcome, PlacementOutcome::Place(_));
        assert_eq!(placed, is_placed, "{kind} in {namespace:?}");
        assert!(placed || decision.outcome == PlacementOutcome::NotSelected);
    }
}

#[test]
fn the_policy_with_the_highest_priority_decides_then_the_first_by_name() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    let to = |name: &str, cluster: &str, priority: i32| {
        policy(
            name,
            json!({
                "priority": priority,
                "clusterSelector": { "matchLabels": { "kubernetes.io/metadata.name": cluster } },
            }),
        )
    };
    world.set_policies([to("x", "a", 0), to("y", "b", 0), to("z", "b", -1)]);
    let web = deployment("web", 1, json!({}), json!({}));
    let decision = world.decide(&web);
    assert_eq!(decision.policy.as_deref(), Some("x"));
    assert_eq!(decision.ignored, ["y", "z"]);
    world.set_policies([to("x", "a", 0), to("y", "b", 7)]);
    assert_eq!(world.placed(&web), [("b", None)]);
    let pinned = deployment("web", 1, json!({}), json!({ "fleet.keelway.dev/cluster": "a" }));
    assert_eq!(world.placed(&pinned), [("a", None)]);
    assert_eq!(world.decide(&pinned).policy, None);
}

#[test]
fn kinds_and_groups_are_selected() {
    let mut world = World::new([cluster("a")]);
    let kinds = json!([{ "group": "core", "kind": "ConfigMap" }, { "group": "apps", "kind": "Deployment" }]);
    world.set_policies([policy("kinds", json!({ "resourceSelectors": { "kinds": kinds } }))]);
    assert_eq!(world.placed(&object("v1", "ConfigMap", Some("default"), "x")), [("a", None)]);
    assert_eq!(world.placed(&deployment("web", 1, json!({}), json!({}))), [("a", None)]);
    world.current = None;
    let secret = world.decide(&object("v1", "Secret", Some("default"), "x"));
    assert_eq!(secret.outcome, PlacementOutcome::NotSelected);
}

#[test]
fn few_replicas_move_when_the_number_changes() {
    let equal =
        |current: &[u32]| current.iter().map(|&current| DivisionPart { weight: 1, current }).collect::<Vec<_>>();
    assert_eq!(divide(10, &equal(&[3, 4, 3])), [3, 4, 3]);
    assert_eq!(divide(11, &equal(&[3, 4, 3])), [4, 4, 3]);
    assert_eq!(divide(9, &equal(&[3, 4, 3])), [3, 3, 3]);
    assert_eq!(divide(7, &[]), [0; 0]);
}
