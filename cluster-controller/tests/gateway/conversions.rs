//! Kinds with two versions. For a request in the version that is not stored, the API server calls a webhook.

use futures::future::join_all;
use kube::Client;
use serde_json::{Value, json};

use crate::PATIENCE;
use crate::places::{CONVERSIONS, urls};
use crate::tenant::{get, post};

const GROUP: &str = "converted.example.com";

/// Returns a kind for each place, and one whose webhook is the Service.
fn kinds(service: &str) -> Vec<(String, Value)> {
    let by_url = urls(CONVERSIONS).into_iter().map(|url| json!({ "url": url }));
    let by_service = json!({ "service": { "namespace": "default", "name": service, "port": 443 } });
    let all = by_url.chain([by_service]);
    all.enumerate().map(|(number, webhook)| (format!("things{number}"), webhook)).collect()
}

/// Creates the kinds, and an object of each.
pub(crate) async fn make(client: &Client, service: &str) {
    let kinds = kinds(service);
    join_all(kinds.iter().map(async |(plural, webhook)| {
        let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        post(client, all, &definition(plural, webhook)).await.unwrap();
        let object = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": kind(plural),
            "metadata": { "name": "one" },
        });
        tokio::time::timeout(PATIENCE, async {
            // The API server serves a new kind after a moment.
            while post(client, &format!("/apis/{GROUP}/v1/{plural}"), &object).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        })
        .await
        .unwrap();
    }))
    .await;
}

/// Requests each object in the version that is not stored. Returns whether any request succeeded.
pub(crate) async fn ask(client: &Client, service: &str) -> bool {
    let asked = kinds(service)
        .into_iter()
        .map(async |(plural, _)| get(client, &format!("/apis/{GROUP}/v2/{plural}/one")).await.is_some());
    join_all(asked).await.contains(&true)
}

fn kind(plural: &str) -> String {
    plural.replace("things", "Thing")
}

fn definition(plural: &str, webhook: &Value) -> Value {
    let version = |name: &str| {
        json!({
            "name": name,
            "served": true,
            "storage": name == "v1",
            "schema": { "openAPIV3Schema": { "type": "object" } },
        })
    };
    json!({
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": { "plural": plural, "kind": kind(plural) },
            "versions": [version("v1"), version("v2")],
            "conversion": {
                "strategy": "Webhook",
                "webhook": { "clientConfig": webhook, "conversionReviewVersions": ["v1"] },
            },
        },
    })
}
