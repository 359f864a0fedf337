//! The CustomResourceDefinitions in a real API server.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Namespace;
use keelway_api::Documents;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use crate::kubectl::Kubectl;

fn tests_of_api(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lib/api/tests").join(directory)
}

pub(crate) fn are_taken(kubectl: &Kubectl) {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/crds");
    let output = kubectl.run(&["apply", "--server-side", "-f", manifests.to_str().unwrap()], "");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "nothing is wrong with them, and nothing is warned of: {told}");
    let kinds =
        ["clusters", "components", "hypervisors", "clusterclasses"].map(|kind| format!("crd/{kind}.keelway.dev"));
    for condition in ["Established", "NamesAccepted"] {
        let condition = format!("--for=condition={condition}");
        kubectl.says(&["wait", &condition, "--timeout=60s", &kinds[0], &kinds[1], &kinds[2], &kinds[3]]);
    }
}

pub(crate) fn explain_every_field(kubectl: &Kubectl) {
    for (kind, fields) in [("kwc", 40), ("components", 15), ("hv", 40), ("kwcc", 20)] {
        // The API server publishes a definition a moment after it is established.
        let deadline = Instant::now() + Duration::from_secs(60);
        while kubectl.refuses(&["explain", kind], "").is_some() {
            assert!(Instant::now() < deadline, "{kind} is not explained");
        }
        let tree = kubectl.says(&["explain", kind, "--recursive"]);
        assert!(tree.lines().count() > fields, "{tree}");
    }
    let said = kubectl.says(&["explain", "kwc.spec.controlPlane.kubeAPIServer.extraSANs"]);
    assert!(said.contains("serving certificate"), "{said}");
}

/// Inputs that the API server accepts. Only a check of all documents, or of more than the values, can refuse them.
const BEYOND: &[&str] = &[
    "agent-via-nowhere",
    "class-default-twice",
    "class-in-a-namespace",
    "cluster-id-ill-formed",
    "cluster-id-of-digits",
    "cluster-id-twice",
    "cluster-twice",
    "component-cluster-gone",
    "component-cluster-without-an-id",
    "component-machine-gone",
    "component-of-another-id",
    "component-ports-overlap",
    "component-users-overlap",
    "cri-without-its-secret",
    "hypervisor-in-a-namespace",
    "hypervisor-twice",
    "installation-ill-formed",
    "machines-that-are-one",
    "member-phase-unknown",
    "merge-key",
    "secret-cluster-gone",
    "secret-namespace-wrong",
    "secret-not-base64",
    "secret-unknown-field",
    "secret-value-a-number",
    "secret-value-empty",
    "secret-without-data",
    "tag",
    "two-owners",
];

/// Inputs for which the API server's message contains the help of Keelway's own validation.
const IN_OUR_WORDS: &[&str] = &[
    "address-of-no-network",
    "address-twice",
    "agent-address-ill-formed",
    "agent-socket-not-absolute",
    "agent-via-ill-formed",
    "agent-with-two-ways",
    "agent-without-a-way",
    "arguments-too-new",
    "bind-address-ill-formed",
    "bind-address-of-a-family-missing",
    "bind-address-of-another-family",
    "class-ill-formed",
    "class-selector-ill-formed",
    "component-as-root",
    "component-name-of-another",
    "component-outlives-its-authority",
    "component-port-twice",
    "dns-domain-ill-formed",
    "endpoint-empty",
    "endpoint-twice",
    "etcd-members-even",
    "extra-names-ill-formed",
    "host-a-url",
    "host-an-address",
    "lives-too-short-and-too-long",
    "name-not-a-label",
    "no-private-address",
    "port-range-of-the-system",
    "port-range-too-small",
    "private-with-a-bind-address",
    "private-with-a-public-address",
    "public-without-a-public-address",
    "range-ill-formed",
    "range-reserved",
    "range-too-large",
    "range-too-small",
    "ranges-empty",
    "ranges-of-different-families",
    "ranges-of-one-family",
    "ranges-overlap",
    "ranges-overlap-with-a-default",
    "registry-port-ill-formed",
    "registry-with-a-scheme",
    "release-unknown",
    "socket-not-absolute",
    "vpn-default-overlaps-pods",
    "vpn-range-multicast-and-unspecified",
    "vpn-range-reserved",
    "vpn-range-too-large",
    "vpn-range-too-small",
    "vpn-ranges-empty",
    "vpn-ranges-of-one-family",
    "vpn-ranges-overlap",
];

pub(crate) async fn refuse_what_validation_refuses(client: &Client) {
    for id in ["0123456789abcdef", "fedcba9876543210"] {
        let namespace = json!({"metadata": {"name": format!("keelway-{id}")}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    }
    let mut wrong = Vec::new();
    let (mut refused, mut taken) = (0, BTreeSet::new());
    for path in inputs("bad") {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Some(told) = told(client, &fs::read_to_string(&path).unwrap_or_default()).await else { continue };
        if told.is_empty() {
            taken.insert(name);
            continue;
        }
        refused += 1;
        let faults = fs::read_to_string(path.with_extension("fault")).unwrap();
        let mends = faults.lines().filter_map(|line| line.split_once("; ")).map(|(_, help)| help);
        let untold: Vec<&str> = mends.filter(|help| !told.contains(help)).collect();
        if IN_OUR_WORDS.contains(&name.as_str()) && !untold.is_empty() {
            wrong.push(format!("{name}: {untold:?} is not in {told}"));
        }
    }
    println!("        {refused} bad inputs are refused at once");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(taken, BEYOND.iter().map(|name| (*name).to_owned()).collect());
    for path in inputs("good") {
        let documents = Documents::read(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(told(client, &documents.write()).await.as_deref(), Some(""), "{}", path.display());
    }
}

/// Sends the documents of Keelway in `text` to the API server as a dry run. Returns its error messages, or `None` if there is no such document.
async fn told(client: &Client, text: &str) -> Option<String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).ok()?;
    let ours = documents.into_iter().filter(|document| document["apiVersion"] == "keelway.dev/v1alpha1");
    let ours: Vec<Value> = ours.filter(|document| document["metadata"].is_object()).collect();
    let mut posted = 0;
    let mut said = String::new();
    for document in ours {
        let namespace = document["metadata"]["namespace"].as_str().unwrap_or("default");
        let place = match document["kind"].as_str() {
            Some("Cluster") => format!("namespaces/{namespace}/clusters"),
            Some("Component") => format!("namespaces/{namespace}/components"),
            Some("Hypervisor") => "hypervisors".to_owned(),
            Some("ClusterClass") => "clusterclasses".to_owned(),
            _ => continue,
        };
        posted += 1;
        let path = format!("/apis/keelway.dev/v1alpha1/{place}?dryRun=All&fieldValidation=Strict");
        let request = http::Request::post(path).header("Content-Type", "application/json");
        let answer = client.request::<Value>(request.body(document.to_string().into_bytes()).unwrap()).await;
        match answer {
            Ok(_) => {}
            Err(kube::Error::Api(status)) => said.push_str(&status.message),
            Err(error) => panic!("{error}"),
        }
    }
    (posted > 0).then_some(said)
}

fn inputs(directory: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(tests_of_api(directory)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

const CLUSTER: &str =
    "{apiVersion: keelway.dev/v1alpha1, kind: Cluster, metadata: {name: shown}, spec: {version: 1.37.0}}";

pub(crate) fn show_and_scale(kubectl: &Kubectl) {
    kubectl.does(&["apply", "-f", "-"], CLUSTER);
    let status =
        |json: &str| ["patch", "kwc", "shown", "--subresource=status", "--type=merge", "-p", json].map(str::to_owned);
    let patch = |json: &str| {
        let arguments = status(json);
        kubectl.refuses(&arguments.each_ref().map(String::as_str), "")
    };
    assert_eq!(
        patch(r#"{"status":{"id":"0123456789abcdef","replicas":1,"endpoints":["https://198.51.100.1:20000"]}}"#),
        None
    );
    let told = patch(r#"{"status":{"id":"fedcba9876543210"}}"#).unwrap();
    assert!(told.contains("id: is immutable"), "{told}");
    let shown = kubectl.says(&["get", "kwc,components,hypervisors", "-o", "wide"]);
    assert!(
        ["READY", "VERSION", "ENDPOINT", "ETCD", "AGE", "https://198.51.100.1:20000"]
            .iter()
            .all(|word| shown.contains(word)),
        "{shown}"
    );
    assert_eq!(kubectl.says(&["get", "keelway", "-o", "name"]), "cluster.keelway.dev/shown\n");
    kubectl.says(&["scale", "kwc", "shown", "--replicas", "3"]);
    let replicas = "jsonpath={.spec.controlPlane.replicas}";
    assert_eq!(kubectl.says(&["get", "kwc", "shown", "-o", replicas]), "3");
    let told = kubectl.refuses(&["scale", "kwc", "shown", "--replicas", "10"], "").unwrap();
    assert!(told.contains("spec.controlPlane.replicas"), "{told}");
    kubectl.says(&["delete", "kwc", "shown"]);
}
