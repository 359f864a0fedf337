//! What the administrator of a cluster can have its API server call, with an egress and without.

use futures::future::join_all;
use kube::Client;
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::conversions;
use crate::daemon::{Egress, Gateway, Keys};
use crate::issuers::authentication;
use crate::lan::{Lan, address};
use crate::places::{CONVERSIONS, ISSUERS, KINDS, WEBHOOKS, are_refused, of_itself, places, urls};
use crate::ports::Ports;
use crate::support::wait_until;
use crate::worker::object;
use crate::{PATIENCE, SECOND, on_host};

const GATEWAY: u8 = 1;
const EGRESS: u8 = 10;
const HYPERVISOR: u8 = 20;
const API_SERVER: u8 = 30;

/// Ports of a hypervisor that stand for its servers: one for each way to it that is not a URL.
const AGGREGATED: u16 = 7002;
const SERVICE: u16 = 7003;
const POD: u16 = 7004;
const NODE: u16 = 7005;
const CONVERTED: u16 = 7006;
/// An issuer that is called without an egress.
const DIRECT: u16 = 7007;

/// Requests to the API that lead to a port, by that port.
const PROXIED: [(u16, &str); 3] = [
    (SERVICE, "/api/v1/namespaces/default/services/http:elsewhere:443/proxy/"),
    (POD, "/api/v1/namespaces/default/pods/http:elsewhere:7004/proxy/"),
    (NODE, "/api/v1/nodes/http:elsewhere:7005/proxy/"),
];

/// The path of an API that the administrator registers.
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
        let machine = lan.machine(HYPERVISOR);
        let hypervisor =
            Ports::listen(&machine, [AGGREGATED, SERVICE, POD, NODE, CONVERTED, DIRECT].into_iter().chain(KINDS));
        let selected = [selection(&egress), issuers(&egress, Some("controlplane"))].concat();
        let mut cluster = ApiServer::start_with(&lan, API_SERVER, selected);
        let own = [&cluster.machine, &egress.daemon.machine].map(of_itself);
        cluster.ask(|client| async move { prepare(&client).await });

        wait_until("each issuer is asked for", PATIENCE, || are_refused(&egress.daemon, &places(ISSUERS)));
        wait_until("each webhook is asked for", PATIENCE, || {
            cluster.ask(|client| async move { judged(&client).await });
            are_refused(&egress.daemon, &places(WEBHOOKS))
        });
        wait_until("each conversion is asked for", PATIENCE, || {
            let some = cluster.ask(|client| async move { conversions::ask(&client, "converted").await });
            assert!(!some, "something was converted");
            are_refused(&egress.daemon, &places(CONVERSIONS)) && are_refused(&gateway.daemon, &at(CONVERTED))
        });
        for (port, path) in PROXIED {
            wait_until(&format!("port {port} is asked for"), PATIENCE, || {
                assert_eq!(cluster.ask(move |client| async move { get(&client, path).await }), None, "{path}");
                are_refused(&gateway.daemon, &at(port))
            });
        }
        cluster.ask(|client| async move { aggregate(&client).await });
        wait_until("the aggregated API was asked for", PATIENCE, || {
            assert_eq!(cluster.ask(|client| async move { get(&client, API).await }), None);
            are_refused(&gateway.daemon, &at(AGGREGATED))
        });
        // Only the configuration of the API server can name an issuer that is called without the egress. No document can.
        wait_until("the other issuer is called", PATIENCE, || hypervisor.met().contains(&DIRECT));
        assert_eq!(hypervisor.met(), [DIRECT].into(), "somebody came");
        assert_eq!(own.each_ref().map(Ports::met), [[].into(), [].into()], "somebody came to the machine itself");

        // Only the egress keeps the API server from the hypervisor.
        cluster.stop();
        cluster.more = issuers(&egress, None);
        cluster.resume();
        wait_until("without an egress, all ways lead there", PATIENCE, || {
            cluster.ask(|client| async move {
                judged(&client).await;
                conversions::ask(&client, "converted").await;
                let paths = PROXIED.iter().map(|(_, path)| *path).chain([API]);
                join_all(paths.map(async |path| get(&client, path).await)).await
            });
            hypervisor.met() == hypervisor.all() && own[0].met() == own[0].all()
        });
    });
}

/// Returns a port of the hypervisor, in the form in which a log names it.
fn at(port: u16) -> [String; 1] {
    [format!("{}:{port}", address(HYPERVISOR))]
}

/// Returns the argument with which a pass configures an API server's egress.
fn selection(egress: &Egress) -> Vec<String> {
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
    vec![format!("--egress-selector-config-file={}", egress.daemon.file("selection.json").display())]
}

/// Returns the other arguments, with issuers that are called through `way`.
fn issuers(egress: &Egress, way: Option<&str>) -> Vec<String> {
    let direct = format!("https://{}/", at(DIRECT)[0]);
    egress.daemon.write("authentication.json", &authentication(way, &direct));
    let authentication = egress.daemon.file("authentication.json");
    vec![format!("--authentication-config={}", authentication.display()), "--enable-aggregator-routing=true".to_owned()]
}

/// Returns the response if it arrives soon. If an API server cannot reach a target, a client retries for a long time.
pub(crate) async fn get(client: &Client, path: &str) -> Option<String> {
    let asked = client.request_text(http::Request::get(path).body(Vec::new()).unwrap());
    tokio::time::timeout(SECOND, asked).await.ok()?.ok()
}

async fn send(client: &Client, request: http::request::Builder, kind: &str, content: &Value) -> kube::Result<String> {
    let request = request.header("content-type", kind).body(content.to_string().into_bytes()).unwrap();
    client.request_text(request).await
}

pub(crate) async fn post(client: &Client, path: &str, object: &Value) -> kube::Result<String> {
    send(client, http::Request::post(path), "application/json", object).await
}

async fn make(client: &Client, path: &str, object: &Value) {
    post(client, path, object).await.unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Creates a Service with endpoints of the tenant's choice, and a Node and a pod that have a hypervisor's address.
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
    for (name, port) in [("elsewhere", SERVICE), ("aggregated", AGGREGATED), ("converted", CONVERTED)] {
        service(client, name, port).await;
    }
    conversions::make(client, "converted").await;
}

/// Creates a Service whose endpoint is that port of a hypervisor.
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

/// Registers an API that the Service `aggregated` serves.
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

/// If there are no webhooks yet, creates them at all places. Then creates an object about which they are called.
async fn judged(client: &Client) {
    let webhook = |(number, url): (usize, String)| {
        json!({
            "name": format!("w{number}.example.com"),
            "clientConfig": { "url": url },
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
        "webhooks": urls(WEBHOOKS).into_iter().enumerate().map(webhook).collect::<Vec<_>>(),
    });
    let _ = post(client, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &object).await;
    let asked = json!({ "metadata": { "generateName": "judged-", "labels": { "judged": "true" } } });
    tokio::time::timeout(PATIENCE, async {
        // The API server uses a new webhook after a moment.
        while post(client, "/api/v1/namespaces/default/configmaps", &asked).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
}
