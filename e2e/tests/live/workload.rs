//! What users do with a cluster, through the ingress with `kubectl`.

use std::{fs, os::unix::fs::OpenOptionsExt, process::Command};

use keelway_e2e::{Kubectl, TestControlPlane, deadline, https::HttpsClient};
use keelway_planner::{DRIVER_SECRET, probes};
use serde_json::Value;

use crate::watch::lines;

/// The value of the Secret. It occurs nowhere else.
const PLAIN: &str = "the-quick-brown-fox-41f7c2";

const MANIFEST: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: told-nobody}
stringData: {word: the-quick-brown-fox-41f7c2}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      containers: [{name: hello, image: registry.k8s.io/pause:3.10.2}]
";

/// The controller manager creates pods. The scheduler reports why they wait: there is no Node.
pub(crate) fn write(plane: &TestControlPlane<'_>) {
    let kubectl = &plane.kubectl;
    kubectl.apply(MANIFEST);
    kubectl.wait("jsonpath={.status.replicas}=2", &["deployment/hello"]);
    kubectl.wait("condition=PodScheduled=false", &["pod", "-l", "app=hello"]);
    let sets = kubectl.get(&["replicaset", "-l", "app=hello"]);
    assert_eq!(sets["items"].as_array().unwrap().len(), 1);
    let pods = kubectl.get(&["pod", "-l", "app=hello"]);
    for pod in pods["items"].as_array().unwrap() {
        assert_eq!(pod["status"]["phase"], "Pending");
    }
    let events = "/api/v1/namespaces/default/events?watch=1&fieldSelector=reason%3DFailedScheduling";
    let event = lines(plane, events).next("an event of the scheduler");
    assert!(event["object"]["message"].as_str().unwrap().contains("no nodes available"), "{event}");
}

/// The Secret has the value that was written.
pub(crate) fn secret_is_there(plane: &TestControlPlane<'_>) {
    let word = plane.kubectl.run(&["get", "secret", "told-nobody", "-o", "go-template={{.data.word | base64decode}}"]);
    assert_eq!(word.succeeded().text(), PLAIN);
}

/// Secrets are encrypted in etcd. The test reads etcd with the credentials of the driver, from the network of the machine.
pub(crate) fn secret_is_encrypted(plane: &TestControlPlane<'_>) {
    let value = stored(plane, "/registry/secrets/default/told-nobody");
    assert!(value.starts_with(b"k8s:enc:secretbox:v1:"), "{}", String::from_utf8_lossy(&value[..40]));
    assert!(!holds(&value, PLAIN));
    // The same search finds a value that is not encrypted.
    assert!(holds(&stored(plane, "/registry/deployments/default/hello"), "registry.k8s.io/pause:3.10.2"));
}

fn holds(value: &[u8], text: &str) -> bool {
    value.windows(text.len()).any(|window| window == text.as_bytes())
}

fn stored(plane: &TestControlPlane<'_>, key: &str) -> Vec<u8> {
    let probe =
        probes(&plane.documents).unwrap().into_iter().find(|probe| probe.component.component.as_str() == "etcd-0");
    let directory = plane.keelway.directory();
    let file = |name: &str, content: Vec<u8>| {
        let path = directory.join(name);
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
        std::io::Write::write_all(&mut file, &content).unwrap();
        path
    };
    let authority = file("etcd-ca.crt", plane.secret("etcd-ca", "bundle.crt"));
    let certificate = file("etcd-client.crt", plane.secret(DRIVER_SECRET, "etcd-client.crt"));
    let private = file("etcd-client.key", plane.secret(DRIVER_SECRET, "etcd-client.key"));
    let mut command = Command::new(keelway_cri::testing::cache().unwrap().join("bin/etcdctl"));
    command.arg(format!("--endpoints=https://{}", probe.unwrap().address)).arg("--cacert").arg(authority);
    command.arg("--cert").arg(certificate).arg("--key").arg(private).args(["get", "--print-value-only", key]);
    plane.private().run(&mut command).succeeded().stdout
}

/// Administrators get their rights from RBAC. `system:masters` is for access when RBAC is broken.
pub(crate) fn administrators(plane: &TestControlPlane<'_>) {
    let groups = |kubectl: &Kubectl| -> Vec<Value> {
        let user = kubectl.run(&["auth", "whoami", "-o", "json"]).succeeded().json();
        user["status"]["userInfo"]["groups"].as_array().unwrap().clone()
    };
    let usual = groups(&plane.kubectl);
    assert!(usual.contains(&"keelway:cluster-admins".into()) && !usual.contains(&"system:masters".into()), "{usual:?}");
    let arguments = ["cluster", "kubeconfig", "--name", "c1", "--break-glass"];
    let text = plane.keelway.run(&arguments, &plane.text).succeeded().stdout;
    let path = plane.keelway.directory().join("break-glass.kubeconfig");
    fs::write(&path, text).unwrap();
    let broken = groups(&Kubectl::new(&path));
    assert!(broken.contains(&"system:masters".into()), "{broken:?}");

    let can = |who: &str| {
        let answer = plane.kubectl.run(&["auth", "can-i", "get", "nodes/proxy", "--as", who]);
        answer.text().trim() == "yes"
    };
    assert!(can("kube-apiserver-kubelet-client"));
    assert!(!can("somebody"));
}

/// A client without credentials can read health endpoints, and nothing else.
pub(crate) fn strangers(plane: &TestControlPlane<'_>) {
    let bundle = plane.secret("kubernetes-ca", "bundle.crt");
    let https = HttpsClient::new(&bundle, "kubernetes", None);
    let get = |path: &str| https.get(std::net::TcpStream::connect(plane.ingress()).unwrap(), path).unwrap().status;
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(get(path), 200, "{path}");
    }
    for path in [
        "/",
        "/api",
        "/apis",
        "/version",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/debug/pprof/",
        "/logs",
        "/readyz/etcd",
        "/api/v1/namespaces/default/secrets",
        "/.well-known/openid-configuration",
        "/openid/v1/jwks",
    ] {
        assert!(matches!(get(path), 401 | 403), "{path}: {}", get(path));
    }
}

/// Endpoints and the discovery document in the cluster do not contain addresses of private machines.
pub(crate) fn endpoints(plane: &TestControlPlane<'_>) {
    let discovery = plane.kubectl.run(&["get", "--raw", "/.well-known/openid-configuration"]).succeeded().json();
    assert_eq!(discovery["jwks_uri"], format!("{}/openid/v1/jwks", discovery["issuer"].as_str().unwrap()));
    let all = plane.kubectl.get(&["endpointslices,endpoints", "--all-namespaces"]).to_string();
    for address in &plane.private().document.spec.addresses.private {
        assert!(!all.contains(address), "{all}");
    }
    // The cluster-controller writes this address, on which every worker balances connections itself.
    let slice = || plane.kubectl.run(&["get", "endpointslices", "kubernetes", "-o", "json"]);
    deadline::until("the endpoints of the API", deadline::KUBERNETES, || slice().code() == 0);
    let slice = slice().json();
    assert_eq!(slice["endpoints"][0]["addresses"], serde_json::json!(["198.19.128.1"]), "{slice}");
    assert_eq!(slice["ports"][0]["port"], 6443, "{slice}");
}
