//! Objects are placed where agents report room, and wait otherwise.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Event};
use keelway_fleet::{SchedulePolicy, Work, WorkloadCluster, WorkloadPlacement, names::works_namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{agents::TestAgent, wait};

const LABEL: (&str, &str) = ("case", "room");

/// Reports nodes with four free CPUs each, as an agent does.
async fn report(agent: &TestAgent, nodes: u32) {
    let rooms = json!([{ "nodes": nodes, "free": { "cpu": "4", "memory": "8Gi", "pods": "110" } }]);
    let body = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": agent.cluster },
        "status": { "capacity": {
            "observedTime": "2026-01-01T00:00:00.000000Z", "nodes": nodes, "nodeGroups": [{ "rooms": rooms }],
        } },
    });
    let api = Api::<WorkloadCluster>::all(agent.client.clone());
    let parameters = PatchParams::apply("keelway-fleet-agent").force();
    api.patch_status(&agent.cluster, &parameters, &Patch::Apply(&body)).await.unwrap();
}

fn web(number: usize) -> Deployment {
    let name = format!("room-{number}");
    let requests = json!({ "requests": { "cpu": "2" } });
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { LABEL.0: LABEL.1 } },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "image": "example.com/c", "resources": requests }] },
            },
        },
    }))
    .unwrap()
}

async fn placements(admin: &Client) -> Vec<WorkloadPlacement> {
    let api = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    let all = api.list(&ListParams::default()).await.unwrap().items;
    all.into_iter().filter(|placement| placement.spec.object.name.starts_with("room-")).collect()
}

/// Waits until so many of the Deployments are placed in `east`, in `west` and nowhere.
async fn placed(admin: &Client, expected: [usize; 3]) {
    wait::until(&format!("the Deployments are placed as {expected:?}"), async || {
        let all = placements(admin).await;
        let number = |name: Option<&str>| {
            let is_there = |placement: &&WorkloadPlacement| {
                placement.spec.clusters.first().map(|cluster| cluster.name.as_str()) == name
            };
            all.iter().filter(is_there).count()
        };
        [number(Some("east")), number(Some("west")), number(None)] == expected
    })
    .await;
}

/// Twenty Deployments at once do not overfill a cluster, and those that wait are placed when a cluster reports more.
pub(crate) async fn room_is_reserved(admin: &Client, west: &TestAgent, east: &TestAgent) {
    west.beat().await.unwrap();
    east.beat().await.unwrap();
    report(west, 2).await;
    report(east, 1).await;
    let policies = Api::<SchedulePolicy>::all(admin.clone());
    let policy: SchedulePolicy = serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": "room" },
        "spec": {
            "priority": 10,
            "resourceSelectors": { "labelSelectors": [{ "matchLabels": { LABEL.0: LABEL.1 } }] },
            "clusterSelector": { "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["east", "west"] }] },
        },
    }))
    .unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    for number in 0..20 {
        deployments.create(&PostParams::default(), &web(number)).await.unwrap();
    }
    placed(admin, [2, 4, 14]).await;
    let message = wait::some("the reason of one that waits", async || {
        let all = placements(admin).await;
        let conditions = all.into_iter().find(|placement| placement.spec.clusters.is_empty())?.status?.conditions;
        let scheduled = conditions.into_iter().find(|condition| condition.type_ == "Scheduled")?;
        assert_eq!((scheduled.status.as_str(), scheduled.reason.as_str()), ("False", "NoRoom"));
        Some(scheduled.message)
    })
    .await;
    assert!(message.starts_with("the object asks for 1 pod with cpu 2, and no cluster"), "{message}");
    assert!(message.contains("east: 0 of 1 pod fit for certain on 1 node"), "{message}");

    report(east, 3).await;
    placed(admin, [6, 4, 10]).await;
    report(west, 10).await;
    placed(admin, [6, 14, 0]).await;
    a_drain_is_paced(admin, west, east).await;

    policies.delete("room", &DeleteParams::default()).await.unwrap();
    for number in 0..20 {
        deployments.delete(&format!("room-{number}"), &DeleteParams::default()).await.unwrap();
    }
    for agent in [west, east] {
        release(agent).await;
    }
    wait::until("all Placements are gone", async || placements(admin).await.is_empty()).await;
}

/// A drain moves as many objects at a time as it allows. Nothing leaves the old cluster before the new one has applied it.
async fn a_drain_is_paced(admin: &Client, west: &TestAgent, east: &TestAgent) {
    west.beat().await.unwrap();
    east.beat().await.unwrap();
    let clusters = Api::<WorkloadCluster>::all(admin.clone());
    let drain = async |drain: Value| {
        let patch = json!({ "spec": { "drain": drain } });
        clusters.patch("east", &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
    };
    assert!(matches!(drain(json!({ "maxMoves": 0 })).await, Err(kube::Error::Api(status)) if status.code == 422));
    for (most, expected) in [(2, [4, 16, 0]), (6, [0, 20, 0])] {
        drain(json!({ "maxMoves": most })).await.unwrap();
        placed(admin, expected).await;
    }
    let works = Api::<Work>::namespaced(admin.clone(), &works_namespace("east"));
    let works = works.list(&ListParams::default()).await.unwrap().items;
    let left =
        works.iter().filter(|work| work.name_any().contains(".room-") && work.metadata.deletion_timestamp.is_none());
    assert_eq!(left.count(), 6);
    let moving = placements(admin).await.into_iter().filter(|placement| {
        let conditions = placement.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == "Moving" && condition.reason == "WaitsForApply")
    });
    assert!(moving.count() > 0);
    let events = Api::<Event>::namespaced(admin.clone(), "default");
    wait::until("an Event names the cause", async || {
        let expected = "The object moves from east to west: the cluster is being drained (spec.drain)";
        events
            .list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .any(|event| event.message.as_deref() == Some(expected))
    })
    .await;
    drain(Value::Null).await.unwrap();
}

/// Removes the finalizers of the Works, as an agent does once the objects are deleted.
async fn release(agent: &TestAgent) {
    let api = Api::<Work>::namespaced(agent.client.clone(), &works_namespace(&agent.cluster));
    let is_own = |work: &Work| work.name_any().contains(".room-");
    wait::until("all Works are released", async || {
        let own = api.list(&ListParams::default()).await.unwrap().items.into_iter().filter(is_own).collect::<Vec<_>>();
        for work in own.iter().filter(|work| work.metadata.deletion_timestamp.is_some()) {
            let none = json!({ "metadata": { "finalizers": null } });
            api.patch(&work.name_any(), &PatchParams::default(), &Patch::Merge(&none)).await.ok();
        }
        own.is_empty()
    })
    .await;
}
