//! Keys and authorities that are rotated under load.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    Component, Documents,
    documents::SecretName,
    machine::sha256_hex,
    role::Role,
    rotation::{RotatedKey, RotationPhase},
};
use keelway_e2e::{Plane, deadline, load::Load, plane::store::PlaneStore};
use serde_json::json;

const KEYS: [&str; 2] = ["--service-account-key", "--encryption-key"];

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

/// Both keys are rotated at once. Tokens of before stay valid until the rotation is completed, and none of them afterwards. A Secret from before is
/// encrypted with the new key, and can be read after the previous key is gone. The commands are those of docs/rotation.md.
pub(crate) fn both_keys(plane: &mut Plane<'_>) {
    let has_account = || plane.kubectl.run(&["get", "serviceaccount", "default"]).code() == 0;
    deadline::until("the namespace has its service account", deadline::KUBERNETES, has_account);
    plane.kubectl.apply(LEGACY);
    let before = [token(plane), legacy_token(plane)];
    assert_eq!(before.each_ref().map(|token| is_valid(plane, token)), [true, true]);
    let create = ["create", "secret", "generic", "before", "--from-literal=word=kept"];
    let _ = plane.kubectl.run(&create).succeeded();
    let previous = key_name(plane);
    assert!(stored_value(plane).starts_with(prefix(&previous).as_bytes()));

    let load = Load::start(&plane.kubectl);
    load.wait_for_requests(100);
    rotate(plane, &KEYS, &[]);
    assert_eq!(phases(plane), [Some(RotationPhase::Prepared); 2]);
    load.lap("the new keys are in use").assert_good();
    let after = token(plane);
    assert_ne!(key_id(&before[0]), key_id(&after), "it is signed with another key");
    assert!(is_valid(plane, &after) && before.iter().all(|token| is_valid(plane, token)), "both keys are valid");
    let active = key_name(plane);
    assert_ne!(active, previous);
    assert!(stored_value(plane).starts_with(prefix(&active).as_bytes()), "it was written again");

    // A new token for the Secret.
    let remove = r#"[{"op": "remove", "path": "/data/token"}]"#;
    let _ = plane.kubectl.run(&["patch", "secret", "legacy", "--type", "json", "--patch", remove]).succeeded();
    let renewed = legacy_token(plane);
    assert_eq!(key_id(&renewed), key_id(&after));

    rotate(plane, &KEYS, &["--complete"]);
    assert_eq!(phases(plane), [Some(RotationPhase::Completed); 2]);
    load.end().assert_good();
    assert_eq!(before.each_ref().map(|token| is_valid(plane, token)), [false, false], "the previous key is removed");
    assert!(is_valid(plane, &after) && is_valid(plane, &renewed));
    for _ in 0..6 {
        let read = plane.kubectl.get(&["secret", "before"]);
        assert_eq!(read["data"]["word"].as_str(), Some(STANDARD.encode("kept").as_str()));
    }
    let all = plane.kubectl.get(&["secrets", "--all-namespaces"]);
    assert!(!all["items"].as_array().unwrap().is_empty(), "every Secret can be read");
    let _ = plane.kubectl.run(&["delete", "secret", "before", "legacy"]).succeeded();
}

/// A certificate of before is accepted until the rotation is completed, and by no member afterwards.
pub(crate) fn of_the_authority_of_etcd(plane: &mut Plane<'_>) {
    const AUTHORITY: [&str; 2] = ["--authority", "etcd"];
    let phase = |plane: &Plane<'_>| plane.cluster().rotation(RotatedKey::EtcdAuthority).unwrap().phase;
    let earlier = plane.documents.clone();
    assert_eq!(members_that_accept(plane, &earlier), 3);
    let load = Load::start(&plane.kubectl);
    load.wait_for_requests(100);
    rotate(plane, &AUTHORITY, &[]);
    assert_eq!(phase(plane), RotationPhase::Prepared);
    load.lap("the new authority is in use").assert_good();
    let between = plane.documents.clone();
    assert_eq!((members_that_accept(plane, &earlier), members_that_accept(plane, &between)), (3, 3));
    rotate(plane, &AUTHORITY, &["--complete"]);
    assert_eq!(phase(plane), RotationPhase::Completed);
    load.end().assert_good();
    assert_eq!((members_that_accept(plane, &earlier), members_that_accept(plane, &plane.documents)), (0, 3));
    assert!(plane.keelway.run(&["plan"], &plane.text).text().starts_with("Nothing to do"));
}

/// One command replaces a stolen authority, without a failed request, and says what is cut off.
pub(crate) fn of_a_stolen_authority(plane: &mut Plane<'_>) {
    let secret = SecretName::of(plane.cluster().id().unwrap(), "front-proxy-ca");
    let bundle = |plane: &Plane<'_>| plane.documents.secrets[&secret].data.as_ref().unwrap()["bundle.crt"].clone();
    let (stolen, text) = (bundle(plane), plane.text.clone());
    let load = Load::start(&plane.kubectl);
    load.wait_for_requests(100);
    let command = ["cluster", "rotate", "--name", "c1", "--authority", "front-proxy", "--now"];
    let requested = plane.keelway.run(&command, &text).succeeded();
    assert!(requested.stderr.contains("aggregated API servers will reject"), "{}", requested.stderr);
    plane.apply(&requested.stdout);
    let rotation = plane.cluster().rotation(RotatedKey::FrontProxyAuthority).unwrap().clone();
    assert_eq!((rotation.phase, rotation.left_behind.len()), (RotationPhase::Completed, 0));
    load.end().assert_good();
    let left = bundle(plane);
    assert!(!left.0.windows(stolen.0.len()).any(|found| found == stolen.0), "the stolen authority is trusted");
    assert!(plane.keelway.run(&["plan"], &plane.text).text().starts_with("Nothing to do"));
}

/// Returns the number of etcd members that accept the driver's certificate of these documents.
fn members_that_accept(plane: &Plane<'_>, documents: &Documents) -> usize {
    let store = PlaneStore::with_certificate_of(plane, documents);
    let accepts = |member: &&Component| store.etcdctl(member, &["endpoint", "health"]).is_some();
    plane.of_role(Role::Etcd).into_iter().filter(accepts).count()
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

fn rotate(plane: &mut Plane<'_>, keys: &[&str], more: &[&str]) {
    let command = [&["cluster", "rotate", "--name", "c1"], keys, more].concat();
    let requested = plane.keelway.run(&command, &plane.text).succeeded().stdout;
    plane.apply(&requested);
}

fn phases(plane: &Plane<'_>) -> [Option<RotationPhase>; 2] {
    [RotatedKey::ServiceAccount, RotatedKey::Encryption]
        .map(|key| plane.cluster().rotation(key).map(|rotation| rotation.phase))
}

/// Returns a new token. An API server that has just started issues it, too.
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
