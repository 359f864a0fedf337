//! Policies and annotations become Works, and what agents report becomes the status of objects. Conformance cases 1, 2, 10 and 13.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Event},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use keelway_fleet::{SchedulePolicy, Work, WorkloadCluster, WorkloadPlacement, names::works_namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{agents::TestAgent, controller::FleetController, wait};

/// The limit of Kubernetes for the data of a ConfigMap or a Secret, in bytes.
const LARGEST_DATA: usize = 1024 * 1024;
/// How many objects are created at once.
const BURST: u64 = 40;

fn deployment(name: &str, replicas: u32, metadata: &Value) -> Deployment {
    let mut body = json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "image": "example.com/c", "env": [{ "name": "A", "value": "b" }] }] },
            },
        },
    });
    for (key, value) in metadata.as_object().into_iter().flatten() {
        body["metadata"][key] = value.clone();
    }
    serde_json::from_value(body).unwrap()
}

async fn work(admin: &Client, cluster: &str, name: &str) -> Option<Work> {
    Api::<Work>::namespaced(admin.clone(), &works_namespace(cluster)).get_opt(name).await.unwrap()
}

/// Waits until the clusters have Works of a Deployment with these replicas.
async fn divided(admin: &Client, name: &str, expected: [(&str, Option<u64>); 2]) {
    let what = format!("{name} is {expected:?}");
    wait::until(&what, async || {
        for (cluster, replicas) in expected {
            let found = work(admin, cluster, &format!("deployment.apps.default.{name}")).await;
            if found.and_then(|work| work.spec.manifest["spec"]["replicas"].as_u64()) != replicas {
                return false;
            }
        }
        true
    })
    .await;
}

/// Reports a Work as its agent does.
pub(crate) async fn applied(agent: &TestAgent, name: &str, status: Value) {
    let api = Api::<Work>::namespaced(agent.client.clone(), &works_namespace(&agent.cluster));
    let generation = api.get(name).await.unwrap().metadata.generation;
    let body = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Work",
        "metadata": { "name": name },
        "status": {
            "observedGeneration": generation,
            "objectGeneration": 1,
            "objectStatus": status,
            "conditions": [{
                "type": "Applied", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    api.patch_status(name, &PatchParams::apply("keelway-fleet-agent").force(), &Patch::Apply(&body)).await.unwrap();
}

/// Removes the finalizer of a Work as its agent does once the object is deleted.
pub(crate) async fn deleted(agent: &TestAgent, name: &str) {
    let api = Api::<Work>::namespaced(agent.client.clone(), &works_namespace(&agent.cluster));
    wait::until("the Work is being deleted", async || {
        api.get(name).await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    let none = json!({ "metadata": { "finalizers": null } });
    api.patch(name, &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
}

/// An annotation spreads an object, its status is the sum, and it is deleted everywhere.
pub(crate) async fn an_annotation_spreads(admin: &Client, west: &TestAgent, east: &TestAgent) {
    let (a, b) = (west.beat().await, east.beat().await);
    assert!(a.is_ok() && b.is_ok());
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    let annotated = json!({ "annotations": { "fleet.keelway.dev/spread-onto": "east,west" } });
    deployments.create(&PostParams::default(), &deployment("pair", 2, &annotated)).await.unwrap();
    divided(admin, "pair", [("east", Some(1)), ("west", Some(1))]).await;
    let name = "deployment.apps.default.pair";
    for agent in [west, east] {
        applied(agent, name, json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "updatedReplicas": 1 })).await;
    }
    wait::until("the status is the sum", async || {
        let status = deployments.get("pair").await.unwrap().status.unwrap_or_default();
        status.ready_replicas == Some(2) && status.observed_generation == Some(1)
    })
    .await;
    deployments.delete("pair", &DeleteParams::default()).await.unwrap();
    for agent in [west, east] {
        deleted(agent, name).await;
    }
    let placements = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    wait::until("the Placement is gone", async || placements.get_opt("deployment.apps.pair").await.unwrap().is_none())
        .await;
}

/// A policy divides, and its change divides again at once. Nothing of the fleet itself is placed.
pub(crate) async fn a_policy_divides(admin: &Client, west: &TestAgent, east: &TestAgent) {
    west.beat().await.unwrap();
    east.beat().await.unwrap();
    let policies = Api::<SchedulePolicy>::all(admin.clone());
    let split = |east: u32, west: u32| json!([{ "topologyValue": "east", "percentage": east }, { "topologyValue": "west", "percentage": west }]);
    let policy: SchedulePolicy = serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": "all" },
        "spec": {
            "resourceSelectors": { "labelSelectors": [{ "matchExpressions": [] }] },
            "clusterSelector": { "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["east", "west"] }] },
            "spreadConstraints": {
                "percentageSplit": split(20, 80),
                "overrides": [{
                    "topologyValue": "east",
                    "resources": [{
                        "group": "apps", "kind": "Deployment", "name": "web",
                        "override": [
                            { "fieldPath": "metadata.labels['example.com/net']", "value": { "staticValue": "net-east" } },
                            { "fieldPath": "spec.template.spec.containers[0].env[0].value", "value": { "staticValue": "east" } },
                        ],
                    }],
                }],
            },
        },
    }))
    .unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    deployments.create(&PostParams::default(), &deployment("web", 10, &json!({}))).await.unwrap();
    divided(admin, "web", [("east", Some(2)), ("west", Some(8))]).await;
    let in_east = work(admin, "east", "deployment.apps.default.web").await.unwrap().spec.manifest;
    assert_eq!(in_east["metadata"]["labels"]["example.com/net"], "net-east");
    assert_eq!(in_east["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"], "east");
    let half = json!({ "spec": { "spreadConstraints": { "percentageSplit": split(50, 50) } } });
    policies.patch("all", &PatchParams::default(), &Patch::Merge(&half)).await.unwrap();
    divided(admin, "web", [("east", Some(5)), ("west", Some(5))]).await;

    let events = Api::<Event>::namespaced(admin.clone(), "default");
    wait::until("an Event names the policy", async || {
        let found = events.list(&ListParams::default()).await.unwrap();
        found.iter().any(|event| {
            event.reason.as_deref() == Some("SchedulePolicyMatched")
                && event.involved_object.name.as_deref() == Some("web")
        })
    })
    .await;
    let works = Api::<Work>::namespaced(admin.clone(), "fleet-east").list(&ListParams::default()).await.unwrap();
    let names: Vec<String> = works.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["deployment.apps.default.web"], "a policy for everything places nothing of the fleet itself");
}

/// A ConfigMap with as much data as Kubernetes allows is distributed. One that is twice as large in JSON is not, and its Placement says so.
pub(crate) async fn objects_of_the_largest_size(admin: &Client, west: &TestAgent) {
    west.beat().await.unwrap();
    let configs = Api::<ConfigMap>::namespaced(admin.clone(), "default");
    let create = async |name: &str, data: Value| {
        let metadata = json!({ "name": name, "annotations": { "fleet.keelway.dev/cluster": "west" } });
        let mut config = json!({ "metadata": metadata });
        config.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
        configs.create(&PostParams::default(), &serde_json::from_value(config).unwrap()).await.unwrap();
    };
    let base64 = format!("{}AA==", "AAAA".repeat(LARGEST_DATA / 3));
    create("largest", json!({ "binaryData": { "zeros": base64 } })).await;
    let name = "configmap.core.default.largest";
    wait::until("the largest ConfigMap has a Work", async || work(admin, "west", name).await.is_some()).await;
    let manifest = work(admin, "west", name).await.unwrap().spec.manifest;
    assert_eq!(manifest["binaryData"]["zeros"], base64);

    create("escaped", json!({ "data": { "lines": "\n".repeat(LARGEST_DATA) } })).await;
    let placements = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    wait::until("the Placement says that the object is too large", async || {
        let status = placements.get_opt("configmap.core.escaped").await.unwrap().and_then(|placement| placement.status);
        let reasons = status.iter().flat_map(|status| &status.clusters).flat_map(|cluster| &cluster.conditions);
        reasons.into_iter().any(|condition| condition.status == "False" && condition.reason == "TooLarge")
    })
    .await;
    let events = Api::<Event>::namespaced(admin.clone(), "default");
    wait::until("an Event says so", async || {
        let found = events.list(&ListParams::default()).await.unwrap();
        let of_object = |event: &&Event| event.involved_object.name.as_deref() == Some("escaped");
        found.iter().filter(of_object).any(|event| event.reason.as_deref() == Some("ApplyFailed"))
    })
    .await;
    assert!(work(admin, "west", "configmap.core.default.escaped").await.is_none());
    for name in ["largest", "escaped"] {
        configs.delete(name, &DeleteParams::default()).await.unwrap();
    }
    deleted(west, name).await;
}

/// Of each object of a burst, each document is written once: the Placement, its Work, and the status of the Placement, which no agent reports about.
pub(crate) async fn a_burst_writes_each_document_once(admin: &Client, west: &TestAgent, controller: &FleetController) {
    let writes = async || {
        let metrics = controller.metrics().await.unwrap();
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix("keelway_fleet_controller_writes_total "));
        value.and_then(|value| value.parse::<u64>().ok()).unwrap()
    };
    west.beat().await.unwrap();
    let objects = Api::<ConfigMap>::namespaced(admin.clone(), "default");
    let create = async |name: String| {
        let annotated = json!({ "annotations": { "fleet.keelway.dev/cluster": "west" }, "name": name });
        let object: ConfigMap = serde_json::from_value(json!({ "metadata": annotated })).unwrap();
        objects.create(&PostParams::default(), &object).await.unwrap();
    };
    let placements = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    let reported = async |prefix: &str| {
        // The cluster stays ready.
        west.beat().await.unwrap();
        let found = placements.list(&ListParams::default()).await.unwrap();
        let found = found.iter().filter(|found| found.name_any().starts_with(prefix) && found.status.is_some());
        found.count() as u64
    };
    // What earlier cases left to be written is written before this one.
    create("calm".to_owned()).await;
    wait::until("an object is placed", async || reported("configmap.core.calm").await == 1).await;
    let (settled, before) = (all_versions(admin).await, writes().await);
    join_all((0..BURST).map(|number| create(format!("burst-{number}")))).await;
    wait::until("the burst is placed", async || reported("configmap.core.burst-").await == BURST).await;
    // What would be written again is written before this one.
    create("after".to_owned()).await;
    wait::until("the next object is placed", async || reported("configmap.core.after").await == 1).await;
    let (written, mut others) = (writes().await - before, all_versions(admin).await);
    others.retain(|name, _| ![".burst-", ".after"].iter().any(|own| name.contains(own)));
    assert_eq!(others, settled, "documents of other objects were written");
    assert_eq!(written, (BURST + 1) * 3);
}

/// Returns the version of each document that the controller writes.
async fn all_versions(admin: &Client) -> BTreeMap<String, Option<String>> {
    let all = ListParams::default();
    let placements = Api::<WorkloadPlacement>::all(admin.clone()).list(&all).await.unwrap();
    let works = Api::<Work>::all(admin.clone()).list(&all).await.unwrap();
    let clusters = Api::<WorkloadCluster>::all(admin.clone()).list(&all).await.unwrap();
    let name = |kind: &str, metadata: &ObjectMeta| {
        let parts = [Some(kind.to_owned()), metadata.namespace.clone(), metadata.name.clone()];
        (parts.into_iter().flatten().collect::<Vec<_>>().join("/"), metadata.resource_version.clone())
    };
    let placements = placements.iter().map(|placement| name("placement", &placement.metadata));
    let works = works.iter().map(|work| name("work", &work.metadata));
    let clusters = clusters.iter().map(|cluster| name("cluster", &cluster.metadata));
    placements.chain(works).chain(clusters).collect()
}

/// Returns the versions of the documents of the Deployment `web`.
pub(crate) async fn versions(admin: &Client) -> Vec<Option<String>> {
    let placement =
        Api::<WorkloadPlacement>::namespaced(admin.clone(), "default").get("deployment.apps.web").await.unwrap();
    let mut versions = vec![placement.resource_version()];
    for cluster in ["east", "west"] {
        versions.push(work(admin, cluster, "deployment.apps.default.web").await.unwrap().resource_version());
    }
    versions
}

/// Another replica plans everything again. It places a new object, and writes nothing of what is settled.
pub(crate) async fn a_restart_writes_nothing(admin: &Client, settled: Vec<Option<String>>, west: &TestAgent) {
    west.beat().await.unwrap();
    let annotated = json!({ "annotations": { "fleet.keelway.dev/cluster": "west" } });
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    deployments.create(&PostParams::default(), &deployment("next", 1, &annotated)).await.unwrap();
    let placements = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    wait::until("the new object is placed, and its status is written", async || {
        let placement = placements.get_opt("deployment.apps.next").await.unwrap();
        placement.is_some_and(|placement| placement.status.is_some())
    })
    .await;
    assert_eq!(versions(admin).await, settled);
}
