use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// An API with one pod, which answers so, one after the other, to who evicts it; from the last one on the pod is gone. There is another
/// worker.
fn api(evictions: &[u16]) -> Client {
    api_with(evictions, &["w1", "w2"])
}

/// The same with these workers.
fn api_with(evictions: &[u16], workers: &[&str]) -> Client {
    let peers: Vec<Value> =
        workers.iter().map(|name| json!({ "metadata": { "name": name }, "spec": { "publicKey": "" } })).collect();
    let peers = json!({ "metadata": {}, "items": peers });
    let left = Arc::new(Mutex::new(evictions.iter().rev().copied().collect::<Vec<_>>()));
    Client::new(
        tower::service_fn(move |request: Request<Body>| {
            let (code, body) = match *request.method() {
                Method::PATCH => (200, json!({ "apiVersion": "v1", "kind": "Node", "metadata": {} })),
                Method::GET if request.uri().path().ends_with("wireguardpeers") => (200, peers.clone()),
                Method::GET => (200, pods(!left.lock().unwrap().is_empty())),
                _ => match left.lock().unwrap().pop().unwrap() {
                    201 => (201, json!({ "kind": "Status", "status": "Success" })),
                    code => (
                        code,
                        json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "" }),
                    ),
                },
            };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()) }
        }),
        "default",
    )
}

fn pods(one: bool) -> Value {
    let pod = json!({ "metadata": { "name": "web", "namespace": "default" } });
    let items = if one { vec![pod] } else { vec![] };
    json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items })
}

async fn drained(client: &Client) -> (Result<(), LeaveError>, Vec<LeaveStep>) {
    let mut steps = Vec::new();
    let options = LeaveOptions { layout: Layout::new("/none"), drain_timeout: Duration::from_secs(60), force: false };
    let outcome = drain(client, "w1", &options, &mut |step| steps.push(step.clone())).await;
    (outcome, steps)
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_asked_again() {
    let (outcome, steps) = drained(&api(&[500, 429, 201])).await;
    outcome.unwrap();
    assert!(
        matches!(&steps[..], [LeaveStep::Again(_), LeaveStep::Drain(pods)] if pods[..] == ["default/web"]),
        "{steps:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_budget_holds_no_pod_that_can_go_nowhere() {
    let (outcome, steps) = drained(&api_with(&[429; 100], &["w1"])).await;
    outcome.unwrap();
    assert_eq!(steps, []);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_ends_it() {
    let (outcome, steps) = drained(&api(&[403, 201])).await;
    assert!(matches!(outcome, Err(LeaveError::Cluster { .. })), "{outcome:?}");
    assert_eq!(steps, []);
}

#[tokio::test(start_paused = true)]
async fn what_never_passes_is_told_when_time_is_up() {
    let (outcome, _) = drained(&api(&[500; 100])).await;
    assert!(matches!(outcome, Err(LeaveError::Cluster { .. })), "{outcome:?}");
    let (outcome, _) = drained(&api(&[429; 100])).await;
    assert!(matches!(outcome, Err(LeaveError::Pods { .. })), "{outcome:?}");
}
