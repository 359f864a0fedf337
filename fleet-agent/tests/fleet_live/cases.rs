//! What a person sees of each case: in the fleet the Work's status, and in the cluster the object.

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        autoscaling::v2::HorizontalPodAutoscaler,
        core::v1::{ConfigMap, Namespace, Node, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use keelway_fleet::WorkloadCluster;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    runtime::wait::{await_condition, conditions},
};
use serde_json::{Value, json};

use crate::{
    fleet::{Works, apply},
    wait,
};

fn config(name: &str, value: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "shop" }, "data": { "key": value } })
}

fn configs(workload: &Client) -> Api<ConfigMap> {
    Api::namespaced(workload.clone(), "shop")
}

async fn value(workload: &Client, name: &str) -> Option<String> {
    configs(workload).get_opt(name).await.unwrap()?.data?.get("key").cloned()
}

pub(crate) async fn has(workload: &Client, name: &str, wanted: &str) {
    wait::until(&format!("{name} has {wanted}"), async || value(workload, name).await.as_deref() == Some(wanted)).await;
}

pub(crate) async fn edit(workload: &Client, name: &str, value: &str) {
    let parameters = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
    configs(workload).patch(name, &parameters, &Patch::Merge(json!({ "data": { "key": value } }))).await.unwrap();
}

fn web(replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "shop" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": "web:1", "resources": { "requests": { "cpu": "500m" } } }] },
            },
        },
    })
}

/// The fleet learns what the cluster can run.
pub(crate) async fn inventory(fleet: &Client, workload: &Client) {
    let nodes: Api<Node> = Api::all(workload.clone());
    for (name, cpu) in [("n1", "4"), ("n2", "1500m")] {
        let node =
            json!({ "metadata": { "name": name }, "spec": { "taints": [{ "key": "gpu", "effect": "NoSchedule" }] } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let status = json!({ "status": { "allocatable": { "cpu": cpu, "memory": "1Gi" } } });
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }
    let clusters: Api<WorkloadCluster> = Api::all(fleet.clone());
    let status = wait::some("the status of the Cluster", async || {
        let status = clusters.get("west").await.ok()?.status?;
        let capacity = status.capacity.as_ref()?;
        let is_whole = status.allocatable.get("cpu").map(String::as_str) == Some("5500m");
        (is_whole && capacity.free.get("cpu").map(String::as_str) == Some("5500m")).then_some(status)
    })
    .await;
    assert_eq!(status.kubernetes_version.as_deref(), Some("1.37.0"));
    let capacity = status.capacity.unwrap();
    assert_eq!(capacity.nodes, 2);
    assert!(capacity.node_groups[0].taints.iter().any(|taint| taint.key == "gpu"));
    assert!(capacity.observed_time.is_some());
    pods_take_room(&clusters, workload).await;
}

/// A pod takes the room of its node, before any kubelet runs it. A pod that has ended takes none.
async fn pods_take_room(clusters: &Api<WorkloadCluster>, workload: &Client) {
    let pods: Api<Pod> = Api::namespaced(workload.clone(), "default");
    let container = json!({ "name": "c", "image": "c", "resources": { "requests": { "cpu": "1" } } });
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "n1", "containers": [container] } });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let free = async |expected: &str| {
        wait::until(&format!("{expected} CPUs are free"), async || {
            let capacity = clusters.get("west").await.unwrap().status.and_then(|status| status.capacity);
            capacity.is_some_and(|capacity| capacity.free.get("cpu").map(String::as_str) == Some(expected))
        })
        .await;
    };
    free("4500m").await;
    let ended = json!({ "status": { "phase": "Succeeded" } });
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(&ended)).await.unwrap();
    free("5500m").await;
    pods.delete("p", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await.unwrap();
}

/// An object is applied, in a namespace that the agent makes, and changed.
pub(crate) async fn apply_and_update(works: &Works, workload: &Client) {
    works.put("plain", config("plain", "one"), json!({})).await;
    works.reports("plain", "True", "Applied").await;
    has(workload, "plain", "one").await;
    works.put("plain", config("plain", "two"), json!({})).await;
    works.reports("plain", "True", "Applied").await;
    has(workload, "plain", "two").await;
    let own =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "namespace": "keelway-fleet" } });
    works.put("own", own, json!({})).await;
    let message = works.reports("own", "False", "InvalidManifest").await;
    assert!(message.contains("keelway-fleet"), "{message}");
    works.delete("own").await;
    works.is_gone("own").await;
}

/// A ConfigMap with as much data as Kubernetes allows: 1 MiB, in base64.
pub(crate) async fn the_largest_object(works: &Works, workload: &Client) {
    let mut largest = config("largest", "one");
    largest.as_object_mut().unwrap().remove("data");
    largest["binaryData"] = json!({ "zeros": format!("{}AA==", "AAAA".repeat(1024 * 1024 / 3)) });
    works.put("largest", largest, json!({})).await;
    works.reports("largest", "True", "Applied").await;
    let applied = configs(workload).get("largest").await.unwrap();
    assert_eq!(applied.binary_data.unwrap()["zeros"].0.len(), 1024 * 1024);
    works.delete("largest").await;
    works.is_gone("largest").await;
}

/// Values of others are reported, and replaced only if the policy says so.
pub(crate) async fn conflict(works: &Works, workload: &Client) {
    let owner = PatchParams::apply("their-tool");
    configs(workload).patch("taken", &owner, &Patch::Apply(config("taken", "theirs"))).await.unwrap();
    works.put("taken", config("taken", "ours"), json!({})).await;
    let message = works.reports("taken", "False", "Conflict").await;
    assert!(message.contains(".data.key (their-tool)"), "{message}");
    assert_eq!(value(workload, "taken").await.as_deref(), Some("theirs"));
    works.put("taken", config("taken", "ours"), json!({ "conflictResolution": "Overwrite" })).await;
    works.reports("taken", "True", "Applied").await;
    has(workload, "taken", "ours").await;
}

/// An object that runs already is adopted. Its uid and generation stay, so that no pod of it restarts.
pub(crate) async fn adoption(works: &Works, workload: &Client) {
    let deployments: Api<Deployment> = Api::namespaced(workload.clone(), "shop");
    let owner = PatchParams::apply("kubectl");
    let before = deployments.patch("web", &owner, &Patch::Apply(web(2))).await.unwrap();
    works.put("web", web(2), json!({})).await;
    works.reports("web", "True", "Applied").await;
    let after = deployments.get("web").await.unwrap();
    assert_eq!((after.uid(), after.metadata.generation), (before.uid(), before.metadata.generation));
    assert_eq!(after.spec.unwrap().template, before.spec.unwrap().template);

    // Its status arrives in the fleet, and each change of it.
    for ready in [1, 2] {
        let status = json!({ "status": { "replicas": 2, "readyReplicas": ready } });
        deployments.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
        wait::until(&format!("{ready} ready replicas in the fleet"), async || {
            let status = works.get("web").await.and_then(|work| work.status);
            status.and_then(|status| status.object_status).is_some_and(|status| status["readyReplicas"] == ready)
        })
        .await;
    }
}

/// An autoscaler keeps `replicas`, also while the fleet changes the object. Without it, the fleet decides again.
pub(crate) async fn autoscaler(works: &Works, workload: &Client) {
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(workload.clone(), "shop");
    let autoscaler = json!({
        "metadata": { "name": "web" },
        "spec": { "maxReplicas": 9, "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" } },
    });
    autoscalers.create(&PostParams::default(), &serde_json::from_value(autoscaler).unwrap()).await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(workload.clone(), "shop");
    let scale = async |replicas: i32| {
        let parameters =
            PatchParams { field_manager: Some("kube-controller-manager".to_owned()), ..PatchParams::default() };
        let change = json!({ "spec": { "replicas": replicas } });
        deployments.patch_scale("web", &parameters, &Patch::Merge(&change)).await.unwrap();
    };
    scale(7).await;
    let mut changed = web(2);
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:2");
    works.put("web", changed, json!({})).await;
    wait::until("the new image", async || {
        let spec = deployments.get("web").await.unwrap().spec.unwrap();
        spec.template.spec.unwrap().containers[0].image.as_deref() == Some("web:2")
    })
    .await;
    works.reports("web", "True", "Applied").await;
    assert_eq!(deployments.get("web").await.unwrap().spec.unwrap().replicas, Some(7));
    autoscalers.delete("web", &DeleteParams::default()).await.unwrap();
    works.put("web", web(3), json!({})).await;
    wait::until("the replicas of the fleet", async || {
        deployments.get("web").await.unwrap().spec.unwrap().replicas == Some(3)
    })
    .await;
}

/// A change in the cluster is undone at once, and a deleted object is back.
pub(crate) async fn drift_is_corrected(works: &Works, workload: &Client) {
    edit(workload, "plain", "edited").await;
    has(workload, "plain", "two").await;
    configs(workload).delete("plain", &DeleteParams::default()).await.unwrap();
    has(workload, "plain", "two").await;
    let unlabelled = json!({ "metadata": { "labels": null } });
    configs(workload).patch("plain", &PatchParams::default(), &Patch::Merge(&unlabelled)).await.unwrap();
    wait::until("the label is back", async || !configs(workload).get("plain").await.unwrap().labels().is_empty()).await;
    works.reports("plain", "True", "Applied").await;
}

/// A change in the cluster is left, and reported with its fields.
pub(crate) async fn drift_is_reported(works: &Works, workload: &Client) {
    works.put("watched", config("watched", "one"), json!({ "drift": "Report" })).await;
    works.reports("watched", "True", "Applied").await;
    edit(workload, "watched", "edited").await;
    works.reports("watched", "True", "Drifted").await;
    assert_eq!(works.get("watched").await.unwrap().status.unwrap().drift, [".data.key"]);
    assert_eq!(value(workload, "watched").await.as_deref(), Some("edited"));
}

fn widget_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"))
}

fn definition(plural: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.example.com") },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": kind, "plural": plural },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
        },
    })
}

/// A custom resource waits for its definition.
pub(crate) async fn custom_resource(works: &Works, workload: &Client) {
    let widget = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w", "namespace": "shop" }, "spec": { "size": 3 },
    });
    works.put("widget", widget, json!({})).await;
    let message = works.reports("widget", "False", "KindNotServed").await;
    assert!(message.contains("Widget of example.com/v1"), "{message}");
    works.put("definition", definition("widgets", "Widget"), json!({})).await;
    works.reports("widget", "True", "Applied").await;
    let widgets: Api<DynamicObject> = Api::namespaced_with(workload.clone(), "shop", &widget_kind());
    assert_eq!(widgets.get("w").await.unwrap().data["spec"]["size"], 3);
}

/// The definition of a kind is deleted in the cluster, and all resources with it. The agent carries out the order for one that it applied.
pub(crate) async fn deletion_without_the_definition(works: &Works, workload: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(workload.clone());
    apply(&definitions, definition("gadgets", "Gadget")).await;
    await_condition(definitions.clone(), "gadgets.example.com", conditions::is_crd_established()).await.unwrap();
    let gadget = json!({
        "apiVersion": "example.com/v1", "kind": "Gadget", "metadata": { "name": "g", "namespace": "shop" },
    });
    works.put("gadget", gadget, json!({})).await;
    works.reports("gadget", "True", "Applied").await;
    definitions.delete("gadgets.example.com", &DeleteParams::default()).await.unwrap();
    await_condition(definitions, "gadgets.example.com", |found: Option<&CustomResourceDefinition>| found.is_none())
        .await
        .unwrap();
    works.delete("gadget").await;
    works.is_gone("gadget").await;
}

/// An order deletes what the agent applied, and nothing else.
pub(crate) async fn deletion(works: &Works, workload: &Client) {
    works.put("short", config("short", "one"), json!({})).await;
    works.reports("short", "True", "Applied").await;
    works.delete("short").await;
    works.is_gone("short").await;
    assert!(configs(workload).get_opt("short").await.unwrap().is_none());

    // A namespace that existed before stays, with everything in it.
    let namespaces: Api<Namespace> = Api::all(workload.clone());
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "theirs" } });
    apply(&namespaces, namespace.clone()).await;
    works.put("theirs", namespace, json!({})).await;
    works.reports("theirs", "True", "Applied").await;
    works.delete("theirs").await;
    works.is_gone("theirs").await;
    assert!(namespaces.get("theirs").await.unwrap().metadata.deletion_timestamp.is_none());

    // A Work that loses its finalizer is no order.
    works.put("kept", config("kept", "one"), json!({})).await;
    works.reports("kept", "True", "Applied").await;
    let released = json!({ "metadata": { "finalizers": null } });
    works.0.patch("kept", &PatchParams::default(), &Patch::Merge(&released)).await.unwrap();
    works.delete("kept").await;
    works.is_gone("kept").await;
    has(workload, "kept", "one").await;

    works.delete("widget").await;
    works.is_gone("widget").await;
    works.delete("definition").await;
    works.is_gone("definition").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(workload.clone());
    assert!(definitions.get_opt("widgets.example.com").await.unwrap().is_none());
}

/// While the fleet is away, drift is still corrected.
pub(crate) async fn goes_on(workload: &Client, value: &str) {
    edit(workload, "plain", value).await;
    has(workload, "plain", "two").await;
}

/// What changed while the agent was away arrives: an update, and a deletion.
pub(crate) async fn order_while_away(works: &Works) {
    works.put("plain", config("plain", "three"), json!({})).await;
    works.delete("watched").await;
}

/// The agent catches up.
pub(crate) async fn catches_up(works: &Works, workload: &Client) {
    works.reports("plain", "True", "Applied").await;
    has(workload, "plain", "three").await;
    works.is_gone("watched").await;
    assert!(configs(workload).get_opt("watched").await.unwrap().is_none());
    has(workload, "kept", "one").await;
}
