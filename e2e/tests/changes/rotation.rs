//! Keys that are rotated under load.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    documents::SecretName,
    machine::sha256_hex,
    rotation::{RotatedKey, RotationPhase},
};
use keelway_e2e::{Plane, load::Load, plane::store::PlaneStore};
use serde_json::json;

const SERVICE_ACCOUNT: &str = "--service-account-key";
const ENCRYPTION: &str = "--encryption-key";

/// A legacy token, which never expires and which nothing renews by itself.
const LEGACY: &str = "\
apiVersion: v1
kind: Secret
metadata:
  name: legacy
  namespace: default
  annotations: {kubernetes.io/service-account.name: default}
type: kubernetes.io/service-account-token
";

/// Tokens of before stay valid until the rotation is completed, and none of them afterwards. The commands are those of docs/rotation.md.
pub(crate) fn service_account_key(plane: &mut Plane<'_>) {
    plane.kubectl.apply(LEGACY);
    let before = [token(plane), legacy_token(plane)];
    assert_eq!(before.each_ref().map(|token| is_valid(plane, token)), [true, true]);

    let load = Load::start(&plane.kubectl);
    load.wait_for_requests(100);
    rotate(plane, SERVICE_ACCOUNT, &[]);
    assert_eq!(phase(plane, RotatedKey::ServiceAccount), Some(RotationPhase::Prepared));
    let report = load.lap("the new service account key is in use");
    report.assert_good();
    let after = token(plane);
    assert_ne!(key_id(&before[0]), key_id(&after), "it is signed with another key");
    assert!(is_valid(plane, &after) && before.iter().all(|token| is_valid(plane, token)), "both keys are valid");

    // A new token for the Secret.
    let remove = r#"[{"op": "remove", "path": "/data/token"}]"#;
    let _ = plane.kubectl.run(&["patch", "secret", "legacy", "--type", "json", "--patch", remove]).succeeded();
    let renewed = legacy_token(plane);
    assert_eq!(key_id(&renewed), key_id(&after));

    rotate(plane, SERVICE_ACCOUNT, &["--complete"]);
    assert_eq!(phase(plane, RotatedKey::ServiceAccount), Some(RotationPhase::Completed));
    load.end().assert_good();
    assert_eq!(before.each_ref().map(|token| is_valid(plane, token)), [false, false], "the previous key is removed");
    assert!(is_valid(plane, &after) && is_valid(plane, &renewed));
    let _ = plane.kubectl.run(&["delete", "secret", "legacy"]).succeeded();
}

/// A Secret from before is encrypted with the new key, and can be read after the previous key is gone.
pub(crate) fn encryption_key(plane: &mut Plane<'_>) {
    let create = ["create", "secret", "generic", "before", "--from-literal=word=kept"];
    let _ = plane.kubectl.run(&create).succeeded();
    let previous = key_name(plane);
    assert!(stored_value(plane).starts_with(prefix(&previous).as_bytes()));

    let load = Load::start(&plane.kubectl);
    load.wait_for_requests(100);
    rotate(plane, ENCRYPTION, &[]);
    assert_eq!(phase(plane, RotatedKey::Encryption), Some(RotationPhase::Prepared));
    load.lap("the new encryption key is in use").assert_good();
    let active = key_name(plane);
    assert_ne!(active, previous);
    assert!(stored_value(plane).starts_with(prefix(&active).as_bytes()), "it was written again");

    rotate(plane, ENCRYPTION, &["--complete"]);
    assert_eq!(phase(plane, RotatedKey::Encryption), Some(RotationPhase::Completed));
    load.end().assert_good();
    for _ in 0..6 {
        let read = plane.kubectl.get(&["secret", "before"]);
        assert_eq!(read["data"]["word"].as_str(), Some(STANDARD.encode("kept").as_str()));
    }
    let all = plane.kubectl.get(&["secrets", "--all-namespaces"]);
    assert!(!all["items"].as_array().unwrap().is_empty(), "every Secret can be read");
    let _ = plane.kubectl.run(&["delete", "secret", "before"]).succeeded();
}

/// Returns the name of the active encryption key, which etcd stores beside each Secret.
fn key_name(plane: &Plane<'_>) -> String {
    let name = SecretName::of(plane.cluster().id().unwrap(), "encryption");
    let key = &plane.documents.secrets[&name].data.as_ref().unwrap()["active.key"];
    sha256_hex(&key.0).chars().take(16).collect()
}

fn prefix(key_name: &str) -> String {
    format!("k8s:enc:secretbox:v1:{key_name}:")
}

/// Returns the Secret as etcd stores it.
fn stored_value(plane: &Plane<'_>) -> Vec<u8> {
    let store = PlaneStore::of(plane);
    let found = store.etcdctl(store.leader(), &["get", "/registry/secrets/default/before"]).unwrap();
    STANDARD.decode(found["kvs"][0]["value"].as_str().unwrap()).unwrap()
}

fn rotate(plane: &mut Plane<'_>, key: &str, more: &[&str]) {
    let command = [&["cluster", "rotate", "--name", "c1", key], more].concat();
    let requested = plane.keelway.run(&command, &plane.text).succeeded().stdout;
    plane.apply(&requested);
}

fn phase(plane: &Plane<'_>, key: RotatedKey) -> Option<RotationPhase> {
    plane.cluster().rotation(key).map(|rotation| rotation.phase)
}

fn token(plane: &Plane<'_>) -> String {
    plane.kubectl.run(&["create", "token", "default", "--duration", "2h"]).succeeded().text().trim().to_owned()
}

/// The token controller writes it a moment after the Secret.
fn legacy_token(plane: &Plane<'_>) -> String {
    plane.kubectl.wait("jsonpath={.data.token}", &["secret/legacy"]);
    let template = "go-template={{.data.token | base64decode}}";
    plane.kubectl.run(&["get", "secret", "legacy", "-o", template]).succeeded().text().to_owned()
}

/// Returns the header of a token, which names the key.
fn key_id(token: &str) -> &str {
    token.split('.').next().unwrap()
}

/// Whether each API server accepts the token: the ingresses choose one for each connection.
fn is_valid(plane: &Plane<'_>, token: &str) -> bool {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "metadata": { "name": "rotation" },
        "spec": { "token": token },
    });
    let verdicts = (0..6).map(|_| {
        let review = plane.kubectl.run_with(&["create", "-o", "json", "-f", "-"], review.to_string().as_bytes());
        review.succeeded().json()["status"]["authenticated"].as_bool().unwrap_or_default()
    });
    let verdicts: Vec<bool> = verdicts.collect();
    assert!(verdicts.windows(2).all(|two| two[0] == two[1]), "API servers disagree: {verdicts:?}");
    verdicts[0]
}
