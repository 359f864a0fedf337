//! The commands for workers: tokens with which machines join, and eviction.

use std::{fs, os::unix::fs::OpenOptionsExt};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{crd::worker_crds, worker::BOOTSTRAPPERS};
use keelway_e2e::{FinishedCommand, Kubectl, TestControlPlane, deadline};
use keelway_pki::{AuthorityHash, BootstrapToken, JoinToken};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

fn keelway(plane: &TestControlPlane<'_>, arguments: &[&str]) -> FinishedCommand {
    let arguments: Vec<&str> = arguments.iter().chain(&["--cluster", "c1"]).copied().collect();
    plane.keelway.run(&arguments, &plane.text)
}

fn token(plane: &TestControlPlane<'_>) -> JoinToken {
    let made = keelway(plane, &["join-token", "create", "--ttl", "10m"]).succeeded();
    assert_eq!(made.stderr, "");
    assert_eq!(made.text().lines().count(), 1);
    made.text().parse().unwrap()
}

/// Returns a `kubectl` whose only credential is a bootstrap token.
fn bearer(plane: &TestControlPlane<'_>, token: &BootstrapToken) -> Kubectl {
    let mut kubeconfig = plane.kubectl.kubeconfig();
    kubeconfig["users"][0]["user"] = json!({ "token": *token.expose() });
    let path = plane.keelway.directory().join("bearer.kubeconfig");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    std::io::Write::write_all(&mut file, kubeconfig.to_string().as_bytes()).unwrap();
    Kubectl::new(&path)
}

/// Returns the request of a kubelet for its first certificate.
fn request(name: &str) -> String {
    let mut parameters = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{name}"));
    parameters.distinguished_name = subject;
    let request = parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    let body = STANDARD.encode(request.der());
    let request = format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n");
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": { "name": format!("of-{name}") },
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
            "request": STANDARD.encode(request),
        },
    })
    .to_string()
}

/// Applies the definitions of workers' kinds, as a cluster-controller in the cluster does.
fn define(plane: &TestControlPlane<'_>) {
    for kind in worker_crds() {
        let kind = serde_json::to_vec(&kind).unwrap();
        let _ = plane.kubectl.run_with(&["apply", "--server-side", "-f", "-"], &kind).succeeded();
    }
    plane.kubectl.wait(
        "condition=Established",
        &["crd/tombstones.keelway.dev", "crd/wireguardpeers.keelway.dev", "crd/workeridentities.keelway.dev"],
    );
}

/// A token contains the endpoint of the cluster and permits a join. It is listed without its secret, and is refused after it was revoked.
pub(crate) fn tokens(plane: &TestControlPlane<'_>) {
    // The cluster-controller usually creates this binding.
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": "e2e-bootstrappers" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": BOOTSTRAPPERS }],
    });
    plane.kubectl.apply(&binding.to_string());
    let token = token(plane);
    assert_eq!(token.endpoints, [plane.ingress()]);
    let bundle = String::from_utf8(plane.secret("kubernetes-ca", "bundle.crt")).unwrap();
    assert_eq!(token.authorities, AuthorityHash::of_bundle(&bundle).unwrap());

    let worker = bearer(plane, &token.bootstrap);
    let who = || worker.run(&["auth", "whoami", "-o", "json"]);
    let groups = who().succeeded().json()["status"]["userInfo"]["groups"].clone();
    assert!(groups.as_array().unwrap().contains(&BOOTSTRAPPERS.into()), "{groups}");
    let _ = worker.run_with(&["create", "-f", "-"], request("e2e").as_bytes()).succeeded();
    assert_eq!(worker.run(&["get", "secrets", "-n", "kube-system"]).code(), 1);

    let id = token.bootstrap.id();
    let listed = keelway(plane, &["join-token", "list"]).succeeded();
    assert!(listed.text().lines().any(|line| line.starts_with(&format!("{id}   Active   "))), "{}", listed.text());
    for output in ["json", "yaml", "wide", "name"] {
        let listed = keelway(plane, &["join-token", "list", "-o", output]).succeeded();
        assert!(listed.text().contains(id) && !listed.text().contains(token.bootstrap.secret()), "{}", listed.text());
    }
    let _ = keelway(plane, &["join-token", "revoke", id]).succeeded();
    let took = deadline::until("a revoked token is refused", deadline::KUBERNETES, || {
        let refused = who();
        refused.code() != 0 && refused.stderr.contains("Unauthorized")
    });
    println!("{:>7} ms  a revoked token is refused", took.as_millis());
    assert_eq!(keelway(plane, &["join-token", "revoke", id]).code(), 2);
    assert_eq!(keelway(plane, &["join-token", "list"]).succeeded().text(), "");
}

fn join(plane: &TestControlPlane<'_>, name: &str) -> String {
    let key = STANDARD.encode(KeyPair::generate().unwrap().public_key_raw().split_at(32).0);
    let peer = json!({
        "apiVersion": "keelway.dev/v1alpha1",
        "kind": "WireGuardPeer",
        "metadata": { "name": name },
        "spec": { "publicKey": key },
    });
    let node =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "spec": { "unschedulable": true } });
    plane.kubectl.apply(&peer.to_string());
    plane.kubectl.apply(&node.to_string());
    key
}

fn is_there(plane: &TestControlPlane<'_>, kind: &str, name: &str) -> bool {
    !plane.kubectl.run(&["get", kind, name, "--ignore-not-found", "-o", "name"]).succeeded().stdout.is_empty()
}

/// After the eviction of a worker, only its tombstone remains.
pub(crate) fn eviction(plane: &TestControlPlane<'_>) {
    define(plane);
    let key = join(plane, "evicted");
    // A public key belongs to a worker for certain only once the worker has an address.
    deadline::until("a worker has its address", deadline::KUBERNETES, || {
        plane.kubectl.get(&["wireguardpeer", "evicted"])["status"]["addresses"].is_array()
    });
    let _ = keelway(plane, &["node", "evict", "evicted"]).succeeded();
    let gone = |name: &str| {
        assert!(!is_there(plane, "wireguardpeer", name), "the peer of {name}");
        assert!(!is_there(plane, "node", name), "the Node of {name}");
        assert!(is_there(plane, "tombstone", name), "the tombstone of {name}");
    };
    gone("evicted");
    assert_eq!(plane.kubectl.get(&["tombstone", "evicted"])["spec"]["publicKey"], Value::from(key));
    let again = keelway(plane, &["node", "evict", "evicted"]).succeeded();
    assert!(again.stderr.contains("already evicted"), "{}", again.stderr);
    assert_eq!(keelway(plane, &["node", "evict", "stranger"]).code(), 2);

    // With `--evict`, revoking a token also evicts the workers that joined with it.
    let token = token(plane);
    let id = token.bootstrap.id();
    join(plane, "guest");
    // No kubelet requested a certificate with this token, so the cluster-controller has not recorded it for this worker.
    let identity = json!({
        "apiVersion": "keelway.dev/v1alpha1",
        "kind": "WorkerIdentity",
        "metadata": { "name": "guest" },
        "spec": { "joinToken": id },
    });
    plane.kubectl.apply(&identity.to_string());
    let _ = keelway(plane, &["join-token", "revoke", id, "--evict"]).succeeded();
    gone("guest");
}

/// The identity of the driver has these rights, and no similar ones.
pub(crate) fn driver(plane: &TestControlPlane<'_>) {
    let can = |words: &str| {
        let arguments: Vec<&str> =
            ["auth", "can-i", "--as", "keelway:driver"].into_iter().chain(words.split(' ')).collect();
        plane.kubectl.run(&arguments).text().trim() == "yes"
    };
    for right in ["create secrets -n kube-system", "delete nodes", "create tombstones.keelway.dev"] {
        assert!(can(right), "{right}");
    }
    for right in [
        "create secrets -n default",
        "update secrets -n kube-system",
        "list secrets -n default",
        "update nodes",
        "get nodes --subresource=proxy",
        "delete tombstones.keelway.dev",
        "create wireguardpeers.keelway.dev",
        "delete pods",
        "approve certificatesigningrequests",
    ] {
        assert!(!can(right), "{right}");
    }
    only_tokens(plane);
}

/// RBAC cannot restrict the driver to Secrets that are bootstrap tokens. An admission policy does.
fn only_tokens(plane: &TestControlPlane<'_>) {
    const GUARD: [&str; 2] = ["validatingadmissionpolicybinding", "keelway-driver-tokens"];
    let run = |words: &str, others: &[&str]| {
        let words: Vec<&str> = words.split(' ').chain(others.iter().copied()).collect();
        plane.kubectl.run(&words)
    };
    let create = "create secret generic e2e-other -n kube-system";
    let delete = "delete secret e2e-other -n kube-system";
    let driver = ["--as", "keelway:driver"];
    let refused = |words| run(words, &driver).stderr.contains("bootstrap tokens only");
    assert!(refused(create));
    let _ = run(create, &[]).succeeded();
    assert!(refused(delete));

    let guard = plane.kubectl.get(&GUARD);
    let _ = plane.kubectl.run(&[&["delete"], &GUARD[..]].concat()).succeeded();
    deadline::until("without the policy it may", deadline::KUBERNETES, || run(delete, &driver).code() == 0);
    let name = json!({ "name": guard["metadata"]["name"] });
    let guard = json!({
        "apiVersion": guard["apiVersion"], "kind": guard["kind"], "metadata": name, "spec": guard["spec"],
    });
    plane.kubectl.apply(&guard.to_string());
}
