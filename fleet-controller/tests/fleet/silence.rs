//! An agent that falls silent: its cluster is `Unknown`, then `False`, and keeps what it has.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use keelway_fleet::Work;
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use crate::{
    controller::{FleetController, apply_role, kinds_are_served},
    plane::Plane,
    registration::{ready, register},
    wait,
};

/// How often the agent that goes on renews its Lease.
const RENEWAL: Duration = Duration::from_secs(10);
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
    assert!(!beats.is_finished());
    controller.stop();
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
