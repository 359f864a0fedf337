//! Documents of a newer release: unknown fields are kept where they are, and nowhere else.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use keelway_api::{
    Documents, ReadOptions, UnknownFields,
    document::{Document, DocumentName, DocumentRef},
};
use serde_json::{Value as Json, json};

const MACHINE: &str = "apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata:
  name: hv-1
  annotations: {keelway.dev/format: '7'}
spec:
  role: Private
  endpoint: {unix: {path: /run/1.sock}}
  addresses: {private: [10.0.0.1], mesh: [fd00::1]}
status:
  rack: {row: 3, door: true}
";

const CLUSTER: &str = "apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata:
  name: c1
  namespace: team-a
  annotations: {keelway.dev/format: '7', note: kept}
spec:
  version: 1.37.0
  etcd: {compaction: 5m}
  controlPlane:
    kubeScheduler: {profile: packed}
  images:
    pullSecrets: [{name: one}, {name: two, optional: true}]
  backup: {to: s3, every: 1h}
status:
  id: aaaaaaaaaaaaaaaa
  initialization: {controlPlaneInitialized: true, workersInitialized: true}
  lastBackup: '2026-01-01T00:00:00Z'
  sizes: [1, 2.5, null]
  conditions:
  - {type: Available, status: 'True', reason: Serving, message: it serves, lastTransitionTime: '2026-01-01T00:00:00Z', severity: none}
";

const SECRETS: &str = "apiVersion: v1
kind: Secret
metadata: {name: NAME, namespace: team-a}
type: kubernetes.io/dockerconfigjson
data: {.dockerconfigjson: eyJhdXRocyI6e319}
";

fn world() -> String {
    let secrets = ["one", "two"].map(|name| SECRETS.replace("NAME", name));
    [MACHINE.to_owned(), CLUSTER.to_owned()].into_iter().chain(secrets).collect::<Vec<_>>().join("---\n")
}

fn fields(documents: &Documents) -> Vec<String> {
    let of = |name: DocumentName| documents.get(&name).map(DocumentRef::newer_fields).unwrap_or_default();
    documents.names().flat_map(of).collect()
}

fn json(documents: &Documents, name: &DocumentName) -> Json {
    documents.get(name).unwrap().json()
}

#[test]
fn fields_of_a_newer_release_are_kept() {
    let mut documents = Documents::read(world().as_bytes()).unwrap();
    let expected = [
        "spec.addresses.mesh",
        "status.rack",
        "spec.backup",
        "spec.controlPlane.kubeScheduler.profile",
        "spec.etcd.compaction",
        "spec.images.pullSecrets[two].optional",
        "status.conditions[Available].severity",
        "status.initialization.workersInitialized",
        "status.lastBackup",
        "status.sizes",
    ];
    assert_eq!(fields(&documents), expected);
    // A save writes the unknown fields back when other fields of the document change.
    let name = documents.clusters.keys().next().unwrap().clone();
    let cluster = documents.clusters.get_mut(&name).unwrap();
    cluster.spec.images.pull_secrets.remove(0);
    cluster.status.as_mut().unwrap().ingress_port = Some(20000);
    let text = documents.write();
    let again = Documents::read(text.as_bytes()).unwrap();
    assert_eq!(again, documents, "nothing changes by a save");
    assert_eq!(again.write(), text);
    let cluster = json(&again, &DocumentName::Cluster(name));
    assert_eq!(cluster["spec"]["backup"], json!({ "to": "s3", "every": "1h" }));
    assert_eq!(cluster["spec"]["etcd"], json!({ "replicas": 1, "compaction": "5m" }));
    assert_eq!(cluster["spec"]["images"]["pullSecrets"], json!([{ "name": "two", "optional": true }]));
    assert_eq!(cluster["spec"]["controlPlane"]["kubeScheduler"], json!({ "profile": "packed" }));
    assert_eq!(cluster["status"]["sizes"], json!([1, 2.5, null]));
    assert_eq!(cluster["status"]["conditions"][0]["severity"], json!("none"));
    assert_eq!(cluster["metadata"]["annotations"], json!({ "keelway.dev/format": "7", "note": "kept" }));
    let machine = json(&again, &DocumentName::Hypervisor("hv-1".parse().unwrap()));
    assert_eq!(machine["spec"]["addresses"]["mesh"], json!(["fd00::1"]));
    assert_eq!(machine["status"], json!({ "rack": { "row": 3, "door": true } }));
}

#[test]
fn an_unknown_field_from_a_user_is_an_error() {
    for format in ["'1'", "7", "newest", "''", "'-1'", "'0'"] {
        let format = format!("keelway.dev/format: {format}");
        let text = world().replace("keelway.dev/format: '7'", &format);
        let faults = Documents::read(text.as_bytes()).unwrap_err().to_string();
        let is_told = faults.contains("unknown field") && faults.contains("status.lastBackup");
        assert!(is_told || faults.contains("keelway.dev/format"), "{faults}");
    }
    let text = world().replace("keelway.dev/format: '7', ", "");
    let faults = Documents::read(text.as_bytes()).unwrap_err().to_string();
    assert!(faults.contains("Cluster team-a/c1") && faults.contains("spec.backup"), "{faults}");
    assert!(!faults.contains("Hypervisor"), "{faults}");
}

#[test]
fn other_faults_of_a_newer_document_are_faults() {
    for (before, after, field) in [
        ("version: 1.37.0", "version: 1.37.0\n  paused: maybe", "spec.paused"),
        ("metadata:\n  name: c1", "backup: true\nmetadata:\n  name: c1", "backup"),
        ("metadata:\n  name: c1", "metadata:\n  nickname: c\n  name: c1", "metadata.nickname"),
        ("{unix: {path: /run/1.sock}}", "{unix: {path: /run/1.sock}, radio: {}}", "spec.endpoint.radio"),
    ] {
        let text = world().replace(before, after);
        let faults = Documents::read(text.as_bytes()).unwrap_err().to_string();
        assert!(faults.contains(field) && !faults.contains("spec.backup"), "{faults}");
    }
}

#[test]
fn fields_that_an_api_server_knows_are_kept_and_written_as_those_of_a_newer_release() {
    let text = CLUSTER.replace("keelway.dev/format: '7', ", "");
    let read =
        |text: &str, unknown| Document::read(text.as_bytes(), "c1", ReadOptions { unknown, ..ReadOptions::default() });
    assert!(read(CLUSTER, UnknownFields::Refused).is_err());
    assert!(read(&text, UnknownFields::OfFormat).is_err());
    let (_, document) = read(&text, UnknownFields::Kept).unwrap();
    let written = document.as_ref().text();
    let (_, again) = read(&written, UnknownFields::OfFormat).unwrap();
    assert_eq!(again.as_ref().newer_fields(), document.as_ref().newer_fields());
    assert_eq!(again.as_ref().text(), written);
}

#[test]
fn a_document_of_the_same_format_has_no_annotation_of_it() {
    let text = "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: c1\nspec:\n  version: 1.37.0\n";
    let stamped = text.replace("name: c1", "name: c1\n  annotations: {keelway.dev/format: '1'}");
    let read = |text: &str| Document::read(text.as_bytes(), "c1", ReadOptions::default()).unwrap().1;
    assert!(read(&stamped) == read(text));
    assert_eq!(read(&stamped).as_ref().text(), read(text).as_ref().text());
    assert!(!read(text).as_ref().text().contains("keelway.dev/format"));
    // A newer format stays, also without an unknown field.
    let newer = stamped.replace("'1'", "'3'");
    assert!(read(&newer).as_ref().text().contains("keelway.dev/format: \"3\""), "{}", read(&newer).as_ref().text());
}
