//! Users learn that the default CNI configuration does not enforce NetworkPolicies.

use http::{Request, header};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
    client::Body,
};
use serde_json::json;

use crate::wait;

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
const WARNING: &str = "does not enforce NetworkPolicies";

/// The API server accepts the object with a warning, and the controller records an Event on it.
pub(crate) async fn are_reported(admin: &Client) {
    wait::until("the API server warns of a NetworkPolicy", async || {
        create(admin, (POLICIES, "none")).await.contains(WARNING) || {
            let policies = Api::<k8s_openapi::api::networking::v1::NetworkPolicy>::default_namespaced(admin.clone());
            policies.delete("none", &DeleteParams::default()).await.unwrap();
            false
        }
    })
    .await;
    let events = Api::<Event>::default_namespaced(admin.clone());
    wait::until("the NetworkPolicy has an Event", async || {
        let all = events.list(&ListParams::default().fields("reason=NotEnforced")).await.unwrap();
        all.items.iter().any(|event| event.type_.as_deref() == Some("Warning"))
    })
    .await;
}

/// Without the default CNI configuration, another plugin may enforce them.
pub(crate) async fn are_not_reported(admin: &Client) {
    let tried = format!("{POLICIES}?dryRun=All");
    wait::until("the API server warns of no NetworkPolicy", async || {
        !create(admin, (&tried, "tried")).await.contains(WARNING)
    })
    .await;
}

/// Creates a NetworkPolicy, and returns the warnings of the response.
async fn create(admin: &Client, (path, name): (&str, &str)) -> String {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": name },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"] },
    });
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    let response = admin.send(request.body(Body::from(policy.to_string().into_bytes())).unwrap()).await.unwrap();
    assert!(response.status().is_success(), "{response:?}");
    let warnings = response.headers().get_all(header::WARNING).into_iter();
    warnings.filter_map(|warning| warning.to_str().ok()).collect::<Vec<_>>().join("\n")
}
