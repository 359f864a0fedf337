//! What an administrator of a cluster can have its API server call, with an egress and without.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use kube::Client;
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::control_plane::echo;
use crate::daemon::{Egress, Gateway, Keys};
use crate::lan::{Lan, address};
use crate::support::{Namespace, wait_until};
use crate::worker::object;
use crate::{PATIENCE, SECOND, on_host};

const GATEWAY: u8 = 1;
const EGRESS: u8 = 10;
const HYPERVISOR: u8 = 20;
const API_SERVER: u8 = 30;

/// The ports of a hypervisor that stand for what listens there: one for each way to it.
const WEBHOOK: u16 = 7001;
const AGGREGATED: u16 = 7002;
const SERVICE: u16 = 7003;
const POD: u16 = 7004;
const NODE: u16 = 7005;

/// What is asked of the API, by the port that it leads to.
const PROXIED: [(u16, &str); 3] = [
    (SERVICE, "/api/v1/namespaces/default/services/http:elsewhere:443/proxy/"),
    (POD, "/api/v1/namespaces/default/pods/http:elsewhere:7004/proxy/"),
    (NODE, "/api/v1/nodes/http:elsewhere:7005/proxy/"),
];

/// What an API of their own is asked.
const API: &str = "/apis/elsewhere.example.com/v1";

#[test]
fn an_administrator_reaches_no_machine_through_its_api_server() {
    on_host("tenant::an_administrator_reaches_no_machine_through_its_api_server", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        gateway.keep(&[object(7)]);
        gateway.start();
        let mut egress = Egress::new(&lan, EGRESS, &keys, &authority, &[GATEWAY]);
        egress.start();
        wait_until("the egress is ready", PATIENCE, || egress.daemon.health("/readyz").0 == 200);
        let mut cluster = ApiServer::start_with(&lan, API_SERVER, selected(&egress));
        let hypervisor = Server::start(lan.machine(HYPERVISOR));
        // The loopback of whoever dials.
        let own = [&cluster.machine, &egress.daemon.machine].map(|machine| echo(machine, WEBHOOK));
        cluster.ask(|client| async move { prepare(&client).await });

        for (port, path) in PROXIED {
            let before = forbidden(&gateway.daemon.metrics(), "");
            wait_until(&format!("port {port} is asked for"), PATIENCE, || {
                assert_eq!(cluster.ask(move |client| async move { get(&client, path).await }), None, "{path}");
                forbidden(&gateway.daemon.metrics(), "") > before
            });
        }
        let before = forbidden(&egress.daemon.metrics(), "selection=\"controlplane\",");
        cluster.ask(|client| async move { judged(&client).await });
        let asked = forbidden(&egress.daemon.metrics(), "selection=\"controlplane\",") - before;
        assert!(asked >= 2, "{asked} webhooks were asked for");
        let before = forbidden(&gateway.daemon.metrics(), "");
        cluster.ask(|client| async move { aggregate(&client).await });
        wait_until("the aggregated API was asked for", PATIENCE, || {
            assert_eq!(cluster.ask(|client| async move { get(&client, API).await }), None);
            forbidden(&gateway.daemon.metrics(), "") > before
        });
        assert_eq!(hypervisor.seen(), [0; 5], "somebody came");
        assert_eq!(own.each_ref().map(|count| count.load(Ordering::Relaxed)), [0, 0], "somebody came to loopback");

        // Its egress is all that keeps it from there.
        cluster.stop();
        cluster.more.clear();
        cluster.more.push("--enable-aggregator-routing=true".to_owned());
        cluster.resume();
        cluster.ask(|client| async move { judged(&client).await });
        wait_until("without an egress, all ways lead there", PATIENCE, || {
            let paths = PROXIED.iter().map(|(_, path)| *path).chain([API]);
            cluster.ask(|client| async move { join_all(paths.map(async |path| get(&client, path).await)).await });
            hypervisor.seen().iter().all(|count| *count > 0)
        });
        assert!(own[0].load(Ordering::Relaxed) > 0, "and to loopback");
    });
}

/// The arguments with which a pass starts API servers.
fn selected(egress: &Egress) -> Vec<String> {
    let way = |name: &str, socket: std::path::PathBuf| {
        let transport = json!({ "uds": { "udsName": socket } });
        json!({ "name": name, "connection": { "proxyProtocol": "HTTPConnect", "transport": transport } })
    };
    let selection = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [way("cluster", egress.cluster()), way("controlplane", egress.control_plane())],
    });
    egress.daemon.write("selection.json", &selection);
    let selection = egress.daemon.file("selection.json");
    vec![
        format!("--egress-selector-config-file={}", selection.display()),
        "--enable-aggregator-routing=true".to_owned(),
    ]
}

/// A machine, and who came to it.
struct Server {
    _machine: Namespace,
    counts: [Arc<AtomicUsize>; 5],
}

impl Server {
    fn start(machine: Namespace) -> Self {
        let counts = [WEBHOOK, AGGREGATED, SERVICE, POD, NODE].map(|port| echo(&machine, port));
        Self { _machine: machine, counts }
    }

    fn seen(&self) -> [usize; 5] {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// How many requests for tunnels were refused as forbidden.
fn forbidden(metrics: &str, labels: &str) -> usize {
    let key = format!("connects_total{{{labels}outcome=\"forbidden\"}} ");
    let line = metrics.lines().find_map(|line| line.split_once(&key)).unwrap_or_else(|| panic!("{metrics}"));
    line.1.parse().unwrap()
}

/// What is answered soon: a client asks again for long what an API server cannot reach.
async fn get(client: &Client, path: &str) -> Option<String> {
    let asked = client.request_text(http::Request::get(path).body(Vec::new()).unwrap());
    tokio::time::timeout(SECOND, asked).await.ok()?.ok()
}

async fn send(client: &Client, request: http::request::Builder, kind: &str, content: &Value) -> kube::Result<String> {
    let request = request.header("content-type", kind).body(content.to_string().into_bytes()).unwrap();
    client.request_text(request).await
}

async fn make(client: &Client, path: &str, object: &Value) {
    let made = send(client, http::Request::post(path), "application/json", object).await;
    made.unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// A Service with endpoints of its maker's own, and a Node and a pod that say that they are at a hypervisor's address.
async fn prepare(client: &Client) {
    let at = address(HYPERVISOR);
    let metadata = json!({ "name": "elsewhere" });
    let node = json!({
        "metadata": metadata,
        "status": { "addresses": [{ "type": "InternalIP", "address": at }] },
    });
    make(client, "/api/v1/nodes", &node).await;
    make(client, "/api/v1/namespaces/default/serviceaccounts", &json!({ "metadata": { "name": "default" } })).await;
    let pod = json!({
        "metadata": metadata,
        "spec": {
            "nodeName": "elsewhere",
            "automountServiceAccountToken": false,
            "containers": [{ "name": "elsewhere", "image": "registry.k8s.io/pause:3.10.2" }],
        },
    });
    make(client, "/api/v1/namespaces/default/pods", &pod).await;
    let status = json!({ "status": { "phase": "Running", "podIP": at, "podIPs": [{ "ip": at }] } });
    let patch = http::Request::patch("/api/v1/namespaces/default/pods/elsewhere/status");
    send(client, patch, "application/merge-patch+json", &status).await.unwrap();
    for (name, port) in [("elsewhere", SERVICE), ("aggregated", AGGREGATED)] {
        service(client, name, port).await;
    }
}

/// Says of a Service that it is at that port of a hypervisor.
async fn service(client: &Client, name: &str, port: u16) {
    let at = address(HYPERVISOR);
    let metadata = json!({ "name": name });
    let service = json!({ "metadata": metadata, "spec": { "ports": [{ "port": 443, "targetPort": port }] } });
    make(client, "/api/v1/namespaces/default/services", &service).await;
    let target = json!({ "kind": "Pod", "namespace": "default", "name": "elsewhere" });
    let endpoints = json!({
        "metadata": metadata,
        "subsets": [{ "addresses": [{ "ip": at, "targetRef": target }], "ports": [{ "port": port }] }],
    });
    make(client, "/api/v1/namespaces/default/endpoints", &endpoints).await;
    let slice = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [at], "conditions": { "ready": true }, "targetRef": target }],
        "ports": [{ "name": "", "port": port, "protocol": "TCP" }],
    });
    make(client, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await;
}

/// An API that the Service `aggregated` serves.
async fn aggregate(client: &Client) {
    let service = json!({ "namespace": "default", "name": "aggregated", "port": 443 });
    let object = json!({
        "metadata": { "name": "v1.elsewhere.example.com" },
        "spec": {
            "group": "elsewhere.example.com",
            "version": "v1",
            "service": service,
            "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    });
    make(client, "/apis/apiregistration.k8s.io/v1/apiservices", &object).await;
}

/// Makes webhooks at a hypervisor and at loopback, where there are none, and something that they are asked about.
async fn judged(client: &Client) {
    let webhook = |name: &str, host: &str| {
        json!({
            "name": format!("{name}.example.com"),
            "clientConfig": { "url": format!("https://{host}:{WEBHOOK}/") },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }],
            "objectSelector": { "matchLabels": { "judged": "true" } },
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 5,
        })
    };
    let object = json!({
        "metadata": { "name": "elsewhere" },
        "webhooks": [webhook("hypervisor", &address(HYPERVISOR)), webhook("loopback", "127.0.0.1")],
    });
    let all = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let _ = send(client, http::Request::post(all), "application/json", &object).await;
    let asked = json!({ "metadata": { "generateName": "judged-", "labels": { "judged": "true" } } });
    let maps = "/api/v1/namespaces/default/configmaps";
    tokio::time::timeout(PATIENCE, async {
        // An API server takes a moment to learn of a webhook.
        while send(client, http::Request::post(maps), "application/json", &asked).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
}
