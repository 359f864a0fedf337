//! The store with a real API server.

use std::time::{Duration, Instant};

use keelway_api::{Documents, document::DocumentName};
use keelway_reconciler::{ChangingDocuments, Store};
use keelway_stores::kubernetes::KubernetesStore;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{contract, kubectl::Kubectl, plane::Plane, role};

struct Server<'a> {
    client: Client,
    kubectl: &'a Kubectl,
}

impl contract::Subject for Server<'_> {
    type Store = KubernetesStore;

    fn open(&self) -> KubernetesStore {
        KubernetesStore::open(self.client.clone())
    }

    fn apply(&self, text: &str) {
        self.kubectl.does(&["apply", "-f", "-"], text);
    }

    fn take_away(&self, name: &DocumentName) {
        let (namespace, object) = place_of(name);
        self.kubectl.says(&[
            "patch",
            "-n",
            &namespace,
            &object,
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ]);
        self.kubectl.says(&["delete", "-n", &namespace, &object]);
    }

    fn has(&self, name: &DocumentName) -> bool {
        let (namespace, object) = place_of(name);
        !self.kubectl.says(&["get", "-n", &namespace, &object, "--ignore-not-found", "-o", "name"]).is_empty()
    }

    fn delete(&self, name: &DocumentName) {
        let namespace = name.namespace().unwrap_or_default();
        let kind = name.kind().to_lowercase();
        self.kubectl.says(&["delete", "--wait=false", "-n", &namespace, &kind, name.name()]);
    }

    fn next_release_writes(&self, names: &[DocumentName], fields: &Value) {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        self.change_definitions(names, |path| json!({ "op": "add", "path": path, "value": schema.clone() }));
        for name in names {
            let (namespace, object) = place_of(name);
            let mut json: Value =
                serde_json::from_str(&self.kubectl.says(&["get", "-n", &namespace, &object, "-o", "json"])).unwrap();
            for part in ["spec", "status"] {
                json[part]["ofNextRelease"] = fields.clone();
            }
            if matches!(name, DocumentName::Component(_)) {
                self.next_manager_applies(&json, "spec", &[]);
            } else {
                // A person changes the spec.
                let patch = json!({ "spec": { "ofNextRelease": fields } }).to_string();
                self.until_taken(&["patch", "-n", &namespace, &object, "--type=merge", "-p", &patch], "");
            }
            self.next_manager_applies(&json, "status", &["--subresource=status"]);
        }
    }
}

impl Server<'_> {
    /// Retries the command until it succeeds and its output has the new field, because a changed definition takes effect after a moment.
    fn until_taken(&self, arguments: &[&str], stdin: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let read = [arguments, &["-o", "json"]].concat();
        loop {
            let output = self.kubectl.run(&read, stdin);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() && said.contains("\"ofNextRelease\"") {
                return;
            }
            assert!(Instant::now() < deadline, "{said} {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Applies a part of an object as the manager of the next release does. It has the same field manager as this release's manager.
    fn next_manager_applies(&self, object: &Value, part: &str, more: &[&str]) {
        let mut body = json!({ "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": { "name": object["metadata"]["name"] } });
        for field in ["namespace", "labels"] {
            if let Some(value) = object["metadata"].get(field).filter(|_| field == "namespace" || part == "spec") {
                body["metadata"][field] = value.clone();
            }
        }
        body[part] = object[part].clone();
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=keelway-manager", "-f", "-"];
        self.until_taken(&[&apply, more].concat(), &body.to_string());
    }

    fn change_definitions(&self, names: &[DocumentName], change: impl Fn(String) -> Value) {
        for name in names {
            let definition = format!("crd/{}s.keelway.dev", name.kind().to_lowercase());
            let field =
                |part| format!("/spec/versions/0/schema/openAPIV3Schema/properties/{part}/properties/ofNextRelease");
            let patch = json!(["spec", "status"].map(|part| change(field(part)))).to_string();
            self.kubectl.says(&["patch", &definition, "--type=json", "-p", &patch]);
        }
    }
}

/// Returns the namespace of a document, and its name for kubectl (`KIND/NAME`).
fn place_of(name: &DocumentName) -> (String, String) {
    (name.namespace().unwrap_or_default(), format!("{}/{}", name.kind().to_lowercase(), name.name()))
}

pub(crate) async fn keeps_what_it_is_given(plane: &Plane, kubectl: &Kubectl) {
    let subject = Server { client: role::client(plane, kubectl).await, kubectl };
    contract::holds(&subject).await;
    fields_go_with_their_definitions(&subject).await;
    what_is_not_sound_is_told_on_it(&subject).await;
    role::is_what_was_used();
}

/// If the definitions are rolled back as well, the API server drops the fields that they no longer have. The store continues without these fields.
async fn fields_go_with_their_definitions(subject: &Server<'_>) {
    let names = [DocumentName::Hypervisor("hv-1".parse().unwrap())];
    contract::Subject::next_release_writes(subject, &names, &json!({ "text": "10" }));
    let store = contract::Subject::open(subject);
    let mut documents = Documents::clone(&*store.load().await.unwrap());
    assert!(documents.get(&names[0]).unwrap().has_newer_fields());
    subject.change_definitions(&names, |path| json!({ "op": "remove", "path": path }));
    let deadline = Instant::now() + Duration::from_secs(60);
    while subject.kubectl.says(&["get", "hv", "hv-1", "-o", "json"]).contains("\"ofNextRelease\":") {
        assert!(Instant::now() < deadline, "the definitions do not count");
    }
    let machine = documents.hypervisors.values_mut().next().unwrap();
    machine.status.as_mut().unwrap().installation = Some("00000000000000ee".parse().unwrap());
    store.save(&documents).await.unwrap();
    let documents = store.load().await.unwrap();
    assert!(!documents.get(&names[0]).unwrap().has_newer_fields());
    let machine = documents.hypervisors.values().next().unwrap();
    assert!(machine.status.as_ref().unwrap().installation.as_ref().is_some_and(|id| id.as_str() == "00000000000000ee"));
}

/// If a document is invalid in a way that the definitions cannot check, the store reports that on the document.
async fn what_is_not_sound_is_told_on_it(subject: &Server<'_>) {
    let store = contract::Subject::open(subject);
    assert!(store.load().await.unwrap().clusters.is_empty());
    let nowhere = "{apiVersion: keelway.dev/v1alpha1, kind: Hypervisor, metadata: {name: hv-3}, spec: {role: Private, \
                   endpoint: {agent: {dialsOut: true, via: hv-9}}, addresses: {private: [10.0.0.3]}}}";
    subject.kubectl.does(&["apply", "-f", "-"], nowhere);
    while !subject.kubectl.says(&["get", "hv", "hv-3", "-o", "yaml"]).contains("Hypervisor hv-9 does not exist") {
        timeout(Duration::from_secs(30), store.changed()).await.unwrap();
        assert_eq!(store.load().await.unwrap().hypervisors.len(), 1, "it has no effect");
    }
    subject.kubectl.says(&["wait", "--for=condition=Accepted=false", "hv/hv-3", "--timeout=10s"]);
    subject.kubectl.says(&[
        "patch",
        "hv",
        "hv-3",
        "--type=merge",
        "-p",
        r#"{"spec":{"endpoint":{"agent":{"dialsOut":null,"via":null,"address":"10.0.0.3:7443"}}}}"#,
    ]);
    while store.load().await.unwrap().hypervisors.len() < 2 {
        timeout(Duration::from_secs(30), store.changed()).await.unwrap();
    }
    assert!(!subject.kubectl.says(&["get", "hv", "hv-3", "-o", "yaml"]).contains("Accepted"));
}
