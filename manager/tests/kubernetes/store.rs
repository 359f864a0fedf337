//! The store before a real API server.

use std::time::Duration;

use keelway_api::document::DocumentName;
use keelway_manager::kubernetes::Kubernetes;
use keelway_reconciler::{Changing, Store};
use kube::Client;
use tokio::time::timeout;

use crate::{contract, kubectl::Kubectl, plane::Plane, role};

struct Server<'a> {
    client: Client,
    kubectl: &'a Kubectl,
}

impl contract::Subject for Server<'_> {
    type Store = Kubernetes;

    fn open(&self) -> Kubernetes {
        Kubernetes::open(self.client.clone())
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
}

/// Its namespace, and what kubectl calls it.
fn place_of(name: &DocumentName) -> (String, String) {
    (name.namespace().unwrap_or_default(), format!("{}/{}", name.kind().to_lowercase(), name.name()))
}

pub(crate) async fn keeps_what_it_is_given(plane: &Plane, kubectl: &Kubectl) {
    let subject = Server { client: role::client(plane, kubectl).await, kubectl };
    contract::holds(&subject).await;
    what_is_not_sound_is_told_on_it(&subject).await;
    role::is_what_was_used();
}

/// What no rule of the definitions can tell.
async fn what_is_not_sound_is_told_on_it(subject: &Server<'_>) {
    let store = contract::Subject::open(subject);
    assert!(store.load().await.unwrap().clusters.is_empty());
    let nowhere = "{apiVersion: keelway.dev/v1alpha1, kind: Hypervisor, metadata: {name: hv-3}, spec: {role: Private, \
                   endpoint: {agent: {dialsOut: true, via: hv-9}}, addresses: {private: [10.0.0.3]}}}";
    subject.kubectl.does(&["apply", "-f", "-"], nowhere);
    while !subject.kubectl.says(&["get", "hv", "hv-3", "-o", "yaml"]).contains("there is no Hypervisor hv-9") {
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
