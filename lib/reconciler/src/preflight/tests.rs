//! What the checks read from API servers of the test.

use http::Method;
use keelway_planner::{DeprecatedApi, SilentWebhook};
use serde_json::{Value, json};

use super::*;
use crate::fake_api::fake_api;

/// Clients do not compare the version and the kind of a list.
fn list(items: &Value, next: &str) -> (u16, String) {
    (200, json!({ "apiVersion": "v1", "kind": "List", "metadata": { "continue": next }, "items": items }).to_string())
}

fn node(name: &str, version: &str) -> Value {
    let info = json!({
        "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
        "kubeletVersion": version, "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
    });
    json!({ "metadata": { "name": name }, "status": { "nodeInfo": info } })
}

fn metric(resource: &str, removed_in: &str) -> String {
    format!(
        "apiserver_requested_deprecated_apis{{group=\"example.com\",removed_release=\"{removed_in}\",resource=\"{resource}\",subresource=\"\",version=\"v1beta1\"}} 1\n"
    )
}

/// A cluster with two Nodes, which are listed on two pages, and with a webhook without an endpoint.
fn cluster(metrics: String) -> kube::Client {
    let webhook = json!({
        "name": "check.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": { "service": { "namespace": "policies", "name": "webhook" } },
        "rules": [{ "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"] }],
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "policies" }, "webhooks": [webhook],
    });
    fake_api(move |method, path, _| {
        assert_eq!(*method, Method::GET);
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        match path.rsplit_once('/').map_or("", |(_, resource)| resource) {
            "metrics" => (200, metrics.clone()),
            "nodes" if query.contains("continue=second") => list(&json!([node("w2", "v1.36.3")]), ""),
            "nodes" => list(&json!([node("w1", "v1.33.9")]), "second"),
            "validatingwebhookconfigurations" => list(&json!([configuration]), ""),
            "mutatingwebhookconfigurations" | "endpointslices" => list(&json!([]), ""),
            _ => panic!("{path}"),
        }
    })
}

#[tokio::test]
async fn everything_that_the_checks_need_is_read() {
    let servers = || Ok(vec![cluster(metric("gadgets", "1.37")), cluster(metric("widgets", "1.38"))]);
    let found = read(FirstBindings::Cluster, || Ok(cluster(String::new())), servers).await;
    let api = |resource: &str, removed_in| DeprecatedApi { resource: resource.to_owned(), removed_in };
    let silent = SilentWebhook {
        configuration: "validatingwebhookconfiguration/policies".to_owned(),
        name: "check.example.com".to_owned(),
        service: "policies/webhook".to_owned(),
    };
    let expected = UpgradePreflight {
        kubelets: ObservedValue::Known([("w1", "v1.33.9"), ("w2", "v1.36.3")].map(owned).into()),
        deprecated_apis: ObservedValue::Known(
            [api("gadgets.v1beta1.example.com", 37), api("widgets.v1beta1.example.com", 38)].into(),
        ),
        silent_webhooks: ObservedValue::Known([silent].into()),
    };
    assert_eq!(found, expected);
}

fn owned((node, version): (&str, &str)) -> (String, String) {
    (node.to_owned(), version.to_owned())
}

/// A fleet has no Nodes that its driver could list.
#[tokio::test]
async fn what_cannot_be_read_is_not_taken_for_nothing() {
    let refuses = || {
        fake_api(|_, _, _| {
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403,
            });
            (403, status.to_string())
        })
    };
    let found = read(FirstBindings::Cluster, || Ok(refuses()), || Ok(vec![cluster(String::new()), refuses()])).await;
    assert!(found.kubelets.known().is_none(), "{:?}", found.kubelets);
    assert!(found.deprecated_apis.known().is_none(), "{:?}", found.deprecated_apis);
    assert!(found.silent_webhooks.known().is_none(), "{:?}", found.silent_webhooks);

    let of_fleet = read(FirstBindings::Fleet, || Ok(refuses()), || Ok(Vec::new())).await;
    assert_eq!(of_fleet.kubelets, ObservedValue::Known(BTreeMap::new()));
}
