use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use serde_json::{Value, json};
use tower::Layer;

use super::*;

const WAIT: WaitCondition<'static> =
    WaitCondition { what: "it exists", help: "create it", deadline: Duration::from_secs(10) };

/// A fake API that responds with `answer`, and the queries that it received.
fn api(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> (Api<ConfigMap>, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (answer, queries) = (Arc::new(answer), Arc::clone(&asked));
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let (code, body) = answer(&query);
        queries.lock().unwrap().push(query);
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(&body).unwrap() };
        let response = Response::builder().status(code).body(Body::from(body)).unwrap();
        async move { Ok::<_, Infallible>(response) }
    });
    (Api::namespaced(Client::new(service, "kube-system"), "kube-system"), asked)
}

fn list(items: &Value) -> (u16, Value) {
    let metadata = json!({ "resourceVersion": "17" });
    (200, json!({ "apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata, "items": items }))
}

fn failure(code: u16) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": "" }),
    )
}

#[tokio::test]
async fn an_absent_object_is_reported_and_then_watched() {
    let (api, asked) = api(|query| if query.contains("watch") { (200, Value::Null) } else { list(&json!([])) });
    let mut seen = Vec::new();
    let ended = follow(&api, "keelway-cni", |object| {
        seen.push(object.is_none());
        None::<()>
    });
    assert!(matches!(ended.await, Ok(None)));
    assert_eq!(seen, [true]);
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 2);
    assert!(asked[1].contains("resourceVersion=17") && asked[1].contains("timeoutSeconds=280"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_retried_each_second_and_the_last_cause_is_reported() {
    let (api, asked) = api(|query| if query.contains("watch") { failure(500) } else { list(&json!([])) });
    let error = wait_for(&api, "a", WAIT, None, Some).await.unwrap_err();
    assert_eq!(asked.lock().unwrap().len(), 2 * 10);
    assert_eq!(error.to_string(), "timed out after 10 s waiting until it exists; create it");
    let ApiError::TimedOut { source: Some(source), .. } = error else { panic!("{error}") };
    assert_eq!(source.code(), Some(500));
}

#[tokio::test]
async fn a_created_object_is_watched_from_its_version() {
    let (api, asked) = api(|_| {
        let object =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "resourceVersion": "9" } });
        (200, json!({ "type": "MODIFIED", "object": object }))
    });
    let mut made = ConfigMap::default();
    made.metadata.resource_version = Some("7".to_owned());
    let version = |map: ConfigMap| map.metadata.resource_version.filter(|version| version != "7");
    assert_eq!(wait_for(&api, "a", WAIT, Some(made), version).await.unwrap(), "9");
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].contains("watch") && asked[0].contains("resourceVersion=7"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_request_is_not_retried() {
    for code in [401, 403] {
        let (api, asked) = api(move |_| failure(code));
        let error = wait_for(&api, "a", WAIT, None, Some).await.unwrap_err();
        assert_eq!((error.code(), asked.lock().unwrap().len()), (Some(code), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_response_times_out() {
    let service = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let api: Api<ConfigMap> = Api::namespaced(Client::new(service, "a"), "a");
    let ended = follow(&api, "a", |_| None::<()>).await;
    assert!(matches!(ended, Err(ApiError::Silent { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_missing_response_is_reported_with_its_deadline() {
    let silent = tower::service_fn(|_: Request<Body>| async {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let client = Client::new(TimeoutLayer::new(ANSWER).layer(silent), "kube-system");
    let asked = Api::<ConfigMap>::namespaced(client, "kube-system").get("a").await;
    let error = asked.map_err(ApiError::request("read a")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read a: no response within 30 s");
    assert!(error.is_transient());
}

#[tokio::test]
async fn only_temporary_errors_are_retried() {
    for (code, may_pass) in
        [(400, false), (401, false), (403, false), (408, true), (409, true), (500, true), (503, true)]
    {
        let (api, _) = api(move |_| failure(code));
        let error = api.get("a").await.map_err(ApiError::request("read a")).unwrap_err();
        assert_eq!(error.is_transient(), may_pass, "{code}");
    }
}
