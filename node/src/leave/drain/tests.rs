use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// A fake API with two workers. It responds to cordons and evictions with these codes, in order. The only pod is gone after the last eviction.
fn api(cordons: &[u16], evictions: &[u16]) -> Client {
    api_with(cordons, evictions, &["w1", "w2"])
}

/// The same with these workers.
fn api_with(cordons: &[u16], evictions: &[u16], workers: &[&str]) -> Client {
    let peers: Vec<Value> =
        workers.iter().map(|name| json!({ "metadata": { "name": name }, "spec": { "publicKey": "" } })).collect();
    let peers = json!({ "metadata": {}, "items": peers });
    let turns = |codes: &[u16]| Arc::new(Mutex::new(codes.iter().rev().copied().collect::<Vec<_>>()));
    let (cordons, evictions) = (turns(cordons), turns(evictions));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, body) = match *request.method() {
            Method::PATCH => answer(cordons.lock().unwrap().pop().unwrap_or(200)),
            Method::GET if request.uri().path().ends_with("wireguardpeers") => (200, peers.clone()),
            Method::GET => (200, pods(!evictions.lock().unwrap().is_empty())),
            _ => answer(evictions.lock().unwrap().pop().unwrap()),
        };
        let body = Body::from(serde_json::to_vec(&body).unwrap());
        async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()) }
    });
    Client::new(service, "default")
}

fn answer(code: u16) -> (u16, Value) {
    let causes = if code == 429 { json!([{ "reason": BUDGET, "message": "held" }]) } else { json!([]) };
    let body = match code {
        200 => json!({ "apiVersion": "v1", "kind": "Node", "metadata": {} }),
        201 => json!({ "kind": "Status", "status": "Success" }),
        _ => {
            json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "", "details": { "causes": causes } })
        }
    };
    (code, body)
}

fn pods(one: bool) -> Value {
    let pod = json!({ "metadata": { "name": "web", "namespace": "default" } });
    let items = if one { vec![pod] } else { vec![] };
    json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items })
}

async fn drained(client: &Client) -> (Result<(), LeaveError>, Vec<LeaveStep>) {
    let mut steps = Vec::new();
    let on_step = &mut |step: &LeaveStep| steps.push(step.clone());
    let outcome = drain(async || Ok(client.clone()), "w1", Duration::from_secs(60), on_step).await;
    (outcome, steps)
}

fn step(ending: &[&str], held: &[&str]) -> LeaveStep {
    let names = |all: &[&str]| all.iter().copied().map(str::to_owned).collect();
    LeaveStep::Drain { ending: names(ending), held: names(held) }
}

#[tokio::test(start_paused = true)]
async fn temporary_errors_are_retried() {
    let (outcome, steps) = drained(&api(&[503, 200], &[500, 429, 201])).await;
    outcome.unwrap();
    assert_eq!(steps, [step(&[], &[]), step(&[], &["default/web"]), step(&["default/web"], &[])]);
}

#[tokio::test(start_paused = true)]
async fn a_budget_does_not_hold_a_pod_of_the_only_worker() {
    let (outcome, steps) = drained(&api_with(&[], &[429; 100], &["w1"])).await;
    outcome.unwrap();
    assert_eq!(steps, []);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_ends_the_drain() {
    let refused = [drained(&api(&[], &[403, 201])).await, drained(&api(&[403], &[])).await];
    for (outcome, steps) in refused {
        assert!(matches!(outcome, Err(LeaveError::Cluster { .. })), "{outcome:?}");
        assert_eq!(steps, []);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_persists_is_reported_at_the_deadline() {
    for code in [429, 500] {
        let (outcome, _) = drained(&api(&[], &[code; 100])).await;
        let is_held = matches!(&outcome, Err(LeaveError::Pods { pods, .. }) if pods.ending.is_empty() && pods.held == ["default/web"]);
        assert_eq!(is_held, code == 429, "{outcome:?}");
        assert!(outcome.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_that_does_not_respond_is_reported() {
    let silent = tower::service_fn(|request: Request<Body>| async move {
        if request.method() != Method::PATCH {
            std::future::pending::<()>().await;
        }
        let body = Body::from(serde_json::to_vec(&answer(200).1).unwrap());
        Ok::<_, Infallible>(Response::new(body))
    });
    let (outcome, steps) = drained(&Client::new(silent, "default")).await;
    assert!(matches!(outcome, Err(LeaveError::Cluster { source: ApiError::Silent { .. }, .. })), "{outcome:?}");
    assert_eq!(steps, []);
}
