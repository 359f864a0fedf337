//! The pages of Secrets, with an API server of the test.

use std::sync::{Mutex, PoisonError};

use http::Method;

use super::*;
use crate::fake_api::fake_api;

const FIRST: &str = "first";
const SECOND: &str = "second";

/// An API server with two pages of Secrets.
#[derive(Default)]
struct PagedSecrets {
    /// The annotation with the progress.
    record: Mutex<Option<String>>,
    /// The names of the written Secrets, and the metadata in each write.
    written: Mutex<Vec<(String, Value)>>,
    /// The status of each response to the write of `b`, if it is an error.
    refusal: Option<u16>,
    /// Positions of lists that have expired.
    expired: Mutex<Vec<&'static str>>,
}

fn locked<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failure(code: u16) -> (u16, String) {
    let status =
        json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "", "reason": "", "code": code });
    (code, status.to_string())
}

fn secret(name: &str) -> Value {
    let metadata =
        json!({ "name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "7" });
    json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata })
}

impl PagedSecrets {
    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, String) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if path.contains("clusterrolebindings") {
            if let Some(text) = body["metadata"]["annotations"][ANNOTATION].as_str() {
                *locked(&self.record) = Some(text.to_owned());
            }
            let annotations = locked(&self.record).as_ref().map(|text| json!({ ANNOTATION: text }));
            let metadata = json!({ "name": OWN_BINDING, "annotations": annotations });
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata,
            });
            return (200, binding.to_string());
        }
        if *method == Method::GET { self.page(path) } else { self.write(path, &body) }
    }

    fn page(&self, path: &str) -> (u16, String) {
        assert!(path.contains("limit=500"), "{path}");
        let asked = if path.contains("continue=second") { SECOND } else { FIRST };
        if locked(&self.expired).contains(&asked) {
            return failure(410);
        }
        let (names, next) = if asked == FIRST { (&["a", "b"][..], SECOND) } else { (&["c"][..], "") };
        let items: Vec<Value> = names.iter().map(|name| secret(name)).collect();
        let page = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": { "continue": next },
            "items": items,
        });
        (200, page.to_string())
    }

    fn write(&self, path: &str, body: &Value) -> (u16, String) {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let name = path.rsplit_once('/').unwrap().1;
        if let ("b", Some(code)) = (name, self.refusal) {
            return failure(code);
        }
        locked(&self.written).push((name.to_owned(), body["metadata"].clone()));
        (200, secret(name).to_string())
    }

    fn client(self: &Arc<Self>) -> kube::Client {
        let server = Arc::clone(self);
        fake_api(move |method, path, body| server.answer(method, path, body))
    }

    fn progress(&self) -> RewriteRecord {
        locked(&self.record).as_deref().map(RewriteRecord::read).unwrap_or_default()
    }

    /// The names of the written Secrets. Those of a page are written in any order.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = locked(&self.written).iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }
}

fn record(rewritten: u64, next: Option<&str>, is_complete: bool) -> RewriteRecord {
    RewriteRecord { key: "k".to_owned(), rewritten, next: next.map(ToOwned::to_owned), is_complete }
}

#[test]
fn a_record_survives_its_text() {
    let record = record(7, Some("t"), false);
    assert_eq!(RewriteRecord::read(&record.text()), record);
    assert_eq!(RewriteRecord::read("changed by hand"), RewriteRecord::default());
}

#[tokio::test]
async fn each_call_writes_the_page_after_the_recorded_one() {
    let server = Arc::new(PagedSecrets::default());
    // All pages were written for an earlier key.
    *locked(&server.record) = Some(RewriteRecord { key: "earlier".to_owned(), ..record(9, None, true) }.text());
    write_next(&server.client(), "k").await.unwrap();
    assert_eq!((server.progress(), server.names()), (record(2, Some(SECOND), false), vec!["a".into(), "b".into()]));
    write_next(&server.client(), "k").await.unwrap();
    assert_eq!(server.progress(), record(3, None, true));
    assert_eq!(server.names(), ["a", "b", "c"]);
    // An API server refuses such a write if the Secret was changed or created anew since it was listed.
    for (name, metadata) in locked(&server.written).iter() {
        assert_eq!(*metadata, json!({ "uid": format!("uid-{name}"), "resourceVersion": "7" }));
    }
}

#[tokio::test]
async fn pages_begin_anew_once_the_position_has_expired() {
    let server = Arc::new(PagedSecrets::default());
    write_next(&server.client(), "k").await.unwrap();
    locked(&server.expired).push(SECOND);
    write_next(&server.client(), "k").await.unwrap();
    assert_eq!(server.progress(), record(0, None, false), "not complete");
    locked(&server.expired).clear();
    for _ in 0..2 {
        write_next(&server.client(), "k").await.unwrap();
    }
    assert_eq!(server.progress(), record(3, None, true));
    assert_eq!(server.names(), ["a", "a", "b", "b", "c"]);

    // The first page has no position that could expire.
    locked(&server.expired).push(FIRST);
    let refused = write_next(&server.client(), "another").await;
    assert!(matches!(refused, Err(ManagedClusterError::Request(_))), "{refused:?}");
}

#[tokio::test]
async fn a_secret_that_changed_needs_no_write_and_one_that_is_refused_keeps_its_page() {
    for code in [404, 409] {
        let server = Arc::new(PagedSecrets { refusal: Some(code), ..PagedSecrets::default() });
        for _ in 0..2 {
            write_next(&server.client(), "k").await.unwrap();
        }
        assert_eq!((server.progress(), server.names()), (record(3, None, true), vec!["a".into(), "c".into()]));
    }
    // Such as by a webhook.
    let server = Arc::new(PagedSecrets { refusal: Some(403), ..PagedSecrets::default() });
    let refused = write_next(&server.client(), "k").await;
    assert!(matches!(refused, Err(ManagedClusterError::Request(_))), "{refused:?}");
    assert_eq!(*locked(&server.record), None);
}
