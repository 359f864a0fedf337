//! An agent that falls silent: its cluster is `Unknown`, then `False`, and keeps what it has, unless a policy has failover.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use keelway_fleet::{SchedulePolicy, Work, WorkloadPlacement};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use crate::{
    agents::TestAgent,
    controller::{FleetController, apply_role, kinds_are_served},
    placed::{applied, deleted},
    plane::Plane,
    registration::{ready, register},
    wait,
};

/// How often the agent that goes on renews its Lease.
const RENEWAL: Duration = Duration::from_secs(10);
/// How long the policy with failover waits.
const AFTER: &str = "5s";
/// How many seconds the last renewal of the other agent counts.
const COUNTS: i32 = 8;

pub(crate) async fn silence() {
    // A fleet of an older release has an older API.
    let plane = Plane::start_with(&[("emulated-version", "1.34"), ("min-compatibility-version", "1.34")]).await;
    let admin = plane.admin().await;
    apply_role(&admin).await;
    let controller = FleetController::start(&plane, "first");
    kinds_are_served(&admin).await;
    let west = register(&plane, &admin, "west").await;
    let east = register(&plane, &admin, "east").await;
    place(&admin, "before").await;
    wait::until("west has the object", async || work(&admin, "west", "before").await.is_some()).await;

    let began = Instant::now();
    west.beat_for(COUNTS).await.unwrap();
    let east_reports = TestAgent { cluster: east.cluster.clone(), client: east.client.clone() };
    let beats = tokio::spawn(async move {
        loop {
            east.beat().await.unwrap();
            tokio::time::sleep(RENEWAL).await;
        }
    });
    for (status, least) in [("Unknown", 8), ("False", 24)] {
        wait::until(&format!("west is {status}"), async || ready(&admin, "west").await.as_deref() == Some(status))
            .await;
        assert!(began.elapsed() >= Duration::from_secs(least), "{status} after {:?}", began.elapsed());
        assert_eq!(ready(&admin, "east").await.as_deref(), Some("True"));
    }
    assert!(
        work(&admin, "west", "before").await.unwrap().metadata.deletion_timestamp.is_none(),
        "it keeps what it has"
    );
    place(&admin, "later").await;
    wait::until("east has the next object", async || work(&admin, "east", "later").await.is_some()).await;
    assert!(work(&admin, "west", "later").await.is_none(), "it gets nothing new");

    wait::until("west is ready again", async || {
        west.beat().await.unwrap();
        ready(&admin, "west").await.as_deref() == Some("True")
    })
    .await;
    wait::until("west catches up", async || work(&admin, "west", "later").await.is_some()).await;
    failover(&admin, &west, &east_reports).await;
    assert!(!beats.is_finished());
    controller.stop();
}

/// An object of a policy with failover leaves a silent cluster. When the agent is back, it deletes its copy, and nothing moves again.
async fn failover(admin: &Client, west: &TestAgent, east: &TestAgent) {
    let name = "configmap.core.default.moves";
    let policy: SchedulePolicy = serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": "moves" },
        "spec": {
            "resourceSelectors": { "labelSelectors": [{ "matchLabels": { "moves": "yes" } }] },
            "orderedClusterSelector": {
                "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["west", "east"] }],
            },
            "failover": { "after": AFTER },
        },
    }))
    .unwrap();
    Api::<SchedulePolicy>::all(admin.clone()).create(&PostParams::default(), &policy).await.unwrap();
    let labelled = json!({ "metadata": { "name": "moves", "labels": { "moves": "yes" } } });
    let objects = Api::<ConfigMap>::namespaced(admin.clone(), "default");
    objects.create(&PostParams::default(), &serde_json::from_value(labelled).unwrap()).await.unwrap();
    wait::until("west has it", async || work(admin, "west", "moves").await.is_some()).await;
    applied(west, name, json!({})).await;

    west.beat_for(COUNTS).await.unwrap();
    wait::until("east has it, too", async || work(admin, "east", "moves").await.is_some()).await;
    assert_ne!(ready(admin, "west").await.as_deref(), Some("True"));
    assert!(work(admin, "west", "moves").await.unwrap().metadata.deletion_timestamp.is_none(), "east is not ready yet");
    applied(east, name, json!({})).await;
    let is_left =
        async || work(admin, "west", "moves").await.is_some_and(|it| it.metadata.deletion_timestamp.is_some());
    wait::until("west is to delete it", is_left).await;
    let placements = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    let placed = async || placements.get("configmap.core.moves").await.unwrap().spec;
    let spec = placed().await;
    let reason = spec.reasons.iter().find(|reason| reason.cluster == "west").unwrap();
    assert_eq!(reason.reason, "Lost", "{}", reason.message);

    wait::until("west is back", async || {
        west.beat().await.unwrap();
        ready(admin, "west").await.as_deref() == Some("True")
    })
    .await;
    deleted(west, name).await;
    wait::until("only east has it", async || work(admin, "west", "moves").await.is_none()).await;
    tokio::time::sleep(2 * Duration::from_secs(5)).await;
    let clusters: Vec<String> = placed().await.clusters.into_iter().map(|placed| placed.name).collect();
    assert_eq!(clusters, ["east"]);
    assert!(work(admin, "west", "moves").await.is_none());
}

/// Applies an object that is placed in both clusters.
async fn place(admin: &Client, name: &str) {
    let annotated =
        json!({ "metadata": { "name": name, "annotations": { "fleet.keelway.dev/spread-onto": "east,west" } } });
    let api = Api::<ConfigMap>::namespaced(admin.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(annotated).unwrap()).await.unwrap();
}

async fn work(admin: &Client, cluster: &str, object: &str) -> Option<Work> {
    let api = Api::<Work>::namespaced(admin.clone(), &format!("fleet-{cluster}"));
    api.get_opt(&format!("configmap.core.default.{object}")).await.unwrap()
}
