//! A fleet: its API stores what users apply, and nothing of it runs.

use std::{fs, time::Instant};

use keelway_api::{Component, Documents, role::Role};
use keelway_e2e::{Keelway, Kubectl, TestFleet, TestMachine, deadline, host::on_own_host, load::Load, process};
use serde_json::{Value, json};

#[test]
fn fleet() {
    on_own_host("fleet::fleet", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2eflt");
    let made = world.create(|keelway, fleet| {
        let create = ["hypervisor", "local", "create", "--fleet", fleet, "--public", "1", "--private", "3"];
        keelway.run(&create, &[])
    });
    let keelway = &world.keelway;
    let injected = keelway.run(&["fleet", "inject", "--name", "f1", "--replicas", "3"], &made).succeeded().stdout;
    let settled = keelway.run(&["reconcile"], &injected).succeeded().stdout;
    let documents = Documents::read(&settled).unwrap();
    let kubectl = administrator(keelway, &settled);

    stage("objects", || objects_are_stored_as_they_are(&kubectl));
    stage("controllers", || {
        namespaces_and_tokens_are_looked_after(&kubectl);
        nothing_was_made_of_objects(&kubectl);
    });
    stage("kinds", || kinds_are_served(&kubectl));
    stage("reach", || no_machine_is_reached(&kubectl, &documents));
    stage("failure", || an_api_server_fails(&kubectl, &world.machines(), &documents));

    let deleted = keelway.run(&["cluster", "delete", "--name", "f1"], &settled).succeeded().stdout;
    let _ = keelway.run(&["reconcile"], &deleted).succeeded();
    assert!(world.machines().iter().all(|machine| machine.running().is_empty()), "the fleet is gone");
}

fn stage(name: &str, body: impl FnOnce()) {
    let started = Instant::now();
    body();
    println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
}

fn administrator(keelway: &Keelway, documents: &[u8]) -> Kubectl {
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "f1"], documents).succeeded().stdout;
    let path = keelway.directory().join("f1.kubeconfig");
    fs::write(&path, kubeconfig).unwrap();
    Kubectl::new(&path)
}

/// A webhook of nobody, a quota and a limit come first. In a cluster, each of them would refuse or change what follows.
const BEFORE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: nobody}
webhooks:
  - name: nobody.example.com
    clientConfig: {service: {namespace: shop, name: nobody}}
    rules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*"]}]
    sideEffects: None
    admissionReviewVersions: [v1]
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: none, namespace: shop}
spec: {hard: {pods: "0", persistentvolumeclaims: "0"}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: some, namespace: shop}
spec: {limits: [{type: Container, default: {cpu: 100m}}]}
"#;

const OBJECTS: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: example.com/web:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: shop}
spec:
  serviceAccountName: of-the-workload-cluster
  priorityClassName: of-the-workload-cluster
  containers: [{name: one, image: example.com/one:1, securityContext: {privileged: true}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";

fn objects_are_stored_as_they_are(kubectl: &Kubectl) {
    kubectl.apply(BEFORE);
    kubectl.apply(OBJECTS);
    let pod = kubectl.get(&["pod", "one", "-n", "shop"]);
    for absent in ["volumes", "tolerations", "priority", "nodeName"] {
        assert_eq!(pod["spec"][absent], Value::Null, "{absent}: {pod}");
    }
    assert_eq!(pod["spec"]["containers"][0]["resources"], json!({}), "{pod}");
    assert_eq!(kubectl.get(&["pvc", "data", "-n", "shop"])["metadata"]["finalizers"], Value::Null);
}

/// The controllers that a fleet has do their work: a namespace goes with its contents, and a token of a service account is issued.
fn namespaces_and_tokens_are_looked_after(kubectl: &Kubectl) {
    let token = json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "brief" } },
            { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot", "namespace": "brief" } },
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/service-account-token",
                "metadata": {
                    "name": "robot",
                    "namespace": "brief",
                    "annotations": { "kubernetes.io/service-account.name": "robot" },
                },
            },
        ],
    });
    kubectl.apply(&token.to_string());
    kubectl.wait("jsonpath={.data.token}", &["secret/robot", "-n", "brief"]);
    let edits = "jsonpath={.rules[0].verbs[0]}";
    kubectl.wait(edits, &["clusterrole/edit"]);
    let _ = kubectl.run(&["delete", "namespace", "brief", "--timeout=60s"]).succeeded();
}

fn nothing_was_made_of_objects(kubectl: &Kubectl) {
    for kind in ["replicasets", "endpointslices"] {
        let made = kubectl.get(&[kind, "--all-namespaces"]);
        assert_eq!(made["items"], json!([]), "{kind}");
    }
    let deployment = kubectl.get(&["deployment", "web", "-n", "shop"]);
    assert_eq!(deployment["status"], json!({}), "no controller looked at it");
    let accounts = kubectl.get(&["serviceaccounts", "-n", "shop"]);
    assert_eq!(accounts["items"], json!([]), "a namespace holds what its users made");
}

/// The fleet-controller applies its kinds once it leads.
fn kinds_are_served(kubectl: &Kubectl) {
    kubectl.wait("condition=Established", &["crd/schedulepolicies.fleet.keelway.dev"]);
    let policies = kubectl.get(&["schedulepolicies.fleet.keelway.dev"]);
    assert_eq!(policies["items"], json!([]));
}

/// An administrator writes a Node with the address of etcd, and asks the API server for a connection to it.
fn no_machine_is_reached(kubectl: &Kubectl, documents: &Documents) {
    let etcd = documents.components.values().find(|component| component.spec.role == Role::Etcd).unwrap();
    let address = &documents.hypervisors[&etcd.spec.hypervisor].spec.addresses.private[0];
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "of-nobody" } }).to_string());
    let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": address }] } });
    let patch = ["patch", "node", "of-nobody", "--subresource=status", "--type=merge", "--patch"];
    let _ = kubectl.run(&[&patch[..], &[&status.to_string()]].concat()).succeeded();
    let proxied = format!("/api/v1/nodes/https:of-nobody:{}/proxy/health", etcd.spec.port("client"));
    let refused = kubectl.run(&["get", "--raw", &proxied]);
    assert_ne!(refused.code(), 0, "{}", refused.text());
    assert!(refused.stderr.contains("/nonexistent/egress.sock"), "{}", refused.stderr);
    let _ = kubectl.run(&["delete", "node", "of-nobody"]).succeeded();
}

/// One of three API servers is killed. Clients go on.
fn an_api_server_fails(kubectl: &Kubectl, machines: &[TestMachine], documents: &Documents) {
    let is_server = |component: &&Component| component.spec.role == Role::KubeApiserver;
    let server = documents.components.values().map(|component| &**component).find(is_server).unwrap();
    let machine = machines.iter().find(|machine| machine.name() == server.spec.hypervisor.as_str()).unwrap();
    let load = Load::start(kubectl);
    load.wait_for_requests(50);
    let before = machine.of(server).unwrap();
    process::kill(machine.container_pid(&before.container));
    deadline::until("the API server runs again", deadline::KUBERNETES, || {
        machine.of(server).is_some_and(|now| now.container != before.container)
    });
    load.wait_for_requests(50);
    load.end().assert_good();
}
