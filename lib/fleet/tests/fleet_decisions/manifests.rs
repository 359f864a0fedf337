//! The manifest of an object for a cluster.

use keelway_fleet::{
    ApplyOrder, DecisionRequest, FieldPath, PlacementOutcome, ReplicasOwner, apply_order, decide, desired_works,
    names::{placement_name, work_name},
};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, object, parsed, policy};

fn one(object: &Json) -> Json {
    let mut world = World::new([cluster("a")]);
    world.set_policies([policy("all", json!({}))]);
    world.manifests(object).remove("a").unwrap()
}

#[test]
fn fields_that_the_api_server_of_the_fleet_wrote_are_left_out() {
    let mut web = deployment("web", 3, json!({ "app": "web", "fleet.keelway.dev/target-cluster": "a" }), json!({}));
    let metadata = web["metadata"].as_object_mut().unwrap();
    for (field, value) in [
        ("resourceVersion", json!("7")),
        ("creationTimestamp", json!("2026-11-27T08:00:00Z")),
        ("managedFields", json!([{}])),
        ("ownerReferences", json!([{}])),
        ("finalizers", json!(["foregroundDeletion"])),
        (
            "annotations",
            json!({ "deployment.kubernetes.io/revision": "1", "kubectl.kubernetes.io/last-applied-configuration": "{}" }),
        ),
    ] {
        metadata.insert(field.to_owned(), value);
    }
    web["status"] = json!({ "replicas": 3 });
    web["spec"]["template"]["metadata"]["creationTimestamp"] = Json::Null;
    assert_eq!(
        one(&web),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "default", "labels": { "app": "web" } },
            "spec": {
                "replicas": 3,
                "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": "web" } }, "spec": {} },
            },
        })
    );
}

#[test]
fn a_cluster_allocates_the_addresses_of_a_service_itself() {
    let mut service = object("v1", "Service", Some("default"), "web");
    let ports = json!([{ "port": 80, "nodePort": 30080 }]);
    service["spec"] =
        json!({ "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ipFamilies": ["IPv4"], "ports": ports });
    assert_eq!(one(&service)["spec"], json!({ "ports": [{ "port": 80 }] }));
    service["spec"] = json!({ "clusterIP": "None", "ports": [{ "port": 80 }] });
    assert_eq!(one(&service)["spec"]["clusterIP"], "None");
}

#[test]
fn a_cluster_generates_the_selector_of_a_job_itself() {
    let mut job = object("batch/v1", "Job", Some("default"), "import");
    job["spec"] = json!({
        "selector": { "matchLabels": { "batch.kubernetes.io/controller-uid": "1" } },
        "template": { "metadata": { "labels": { "app": "import", "controller-uid": "1", "batch.kubernetes.io/job-name": "import" } } },
    });
    assert_eq!(one(&job)["spec"], json!({ "template": { "metadata": { "labels": { "app": "import" } } } }));
    job["spec"]["manualSelector"] = json!(true);
    assert!(one(&job)["spec"]["selector"].is_object());
}

#[test]
fn an_autoscaler_keeps_the_replicas() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("even", json!({ "spreadConstraints": {} }))]);
    let web = parsed(&deployment("web", 3, json!({}), json!({})));
    let mut scaler = object("autoscaling/v2", "HorizontalPodAutoscaler", Some("default"), "web");
    scaler["spec"] = json!({ "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" } });
    assert!(web.is_autoscaled_by([&scaler]));
    scaler["metadata"]["namespace"] = json!("shop");
    assert!(!web.is_autoscaled_by([&scaler]));
    let request = DecisionRequest { object: &web, is_autoscaled: true, current: None };
    let PlacementOutcome::Place(placement) = decide(&world.fleet, &request).outcome else { panic!() };
    for work in desired_works(&web, &placement, true) {
        let spec = work.unwrap().spec;
        assert_eq!(spec.replicas_owner, ReplicasOwner::Autoscaler);
        assert_eq!(spec.manifest["spec"].get("replicas"), None);
    }
}

#[test]
fn paths_of_fields() {
    let mut value = json!({ "spec": { "containers": [{ "env": [{}] }] } });
    let mut set = |path: &str| {
        FieldPath::parse(path).and_then(|path| path.set(&mut value, json!(1))).map_err(|error| error.to_string())
    };
    set("spec.containers[0].env[0].value").unwrap();
    set("metadata.labels['a.b/c']").unwrap();
    set("['x y'].z").unwrap();
    assert_eq!(
        set("spec.containers[1].image").unwrap_err(),
        "spec.containers has no item [1]: write an item that the object has"
    );
    assert!(
        set("spec.containers.image")
            .unwrap_err()
            .contains("spec.containers is a list, and the field path expects a map")
    );
    assert!(set("spec[0]").unwrap_err().contains("spec is a map, and the field path expects a list"));
    for wrong in ["", ".", "a..b", "a.", "[0]", "a[", "a[x]", "a['']", "a['b'", "a[-1]", "a b", "a[9999999]"] {
        assert!(FieldPath::parse(wrong).is_err(), "{wrong}");
    }
    assert_eq!(value["spec"]["containers"][0]["env"][0]["value"], 1);
    assert_eq!(value["metadata"]["labels"]["a.b/c"], 1);
    assert_eq!(value["x y"]["z"], 1);
}

#[test]
fn namespaces_and_definitions_come_first() {
    let order = |version: &str, kind: &str| apply_order(&object(version, kind, None, "x"));
    assert!(order("v1", "Namespace") < order("apiextensions.k8s.io/v1", "CustomResourceDefinition"));
    assert!(order("apiextensions.k8s.io/v1", "CustomResourceDefinition") < order("apps/v1", "Deployment"));
    assert_eq!(order("example.com/v1", "Namespace"), ApplyOrder::Rest);
}

#[test]
fn names_are_readable_unique_and_valid() {
    let of = |version: &str, kind: &str, namespace: Option<&str>, name: &str| {
        parsed(&object(version, kind, namespace, name)).reference
    };
    let web = of("apps/v1", "Deployment", Some("shop"), "web");
    assert_eq!(placement_name(&web), "deployment.apps.web");
    assert_eq!(work_name(&web), "deployment.apps.shop.web");
    assert_eq!(work_name(&of("v1", "Namespace", None, "shop")), "namespace.core.shop");
    let colon = work_name(&of("rbac.authorization.k8s.io/v1", "ClusterRole", None, "system:reader"));
    assert!(colon.starts_with("clusterrole.rbac.authorization.k8s.io.system-reader-"), "{colon}");
    let dotted = work_name(&of("v1", "ConfigMap", Some("shop"), "kube-root-ca.crt"));
    assert_ne!(dotted, work_name(&of("v1", "ConfigMap", Some("shop"), "kube-root-ca-crt")));
    let long = "x".repeat(253);
    for name in [long.as_str(), "a.b", "system:x", "-", "Ü"] {
        let name = work_name(&of("example.com/v1", "Thing", Some("shop"), name));
        assert!(name.len() <= 253 && keelway_api::name::is_subdomain(&name), "{name}");
    }
}
