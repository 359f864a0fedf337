//! All objects of a control plane in a Kubernetes cluster.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{Documents, machine::PodFile, name::ClusterId};
use keelway_fleet::names::{API_READY_EVENT, CERTIFICATES_DUE_EVENT, CONTROL_PLANE_READY_EVENT};
use keelway_planner::{API_SERVICE, HostedFleet, STORE_SERVICE};
use serde_json::{Map, Value, json};

use crate::{
    ApiService, FleetRecord, HostingOptions,
    metadata::{NAME, labels_of, metadata, selected_labels},
    pod_spec::{container_security, secret_volume, security_context},
    workloads::{files_secret, workload, workload_name},
};

/// The name of the objects of the program that prepares the fleet and reports when it is ready.
const HOST: &str = "keelway-fleet-host";
/// The user and group of that program.
const USER: u32 = 65532;
/// The port of the API servers in their pods.
const API_SERVER: u16 = 6443;

/// Returns the Namespace and the Service of the API servers alone, for clusters that assign the address of a Service.
#[must_use]
pub fn service_manifests(namespace: &str, service: ApiService) -> Vec<Value> {
    vec![namespace_object(namespace), api_service(namespace, service)]
}

/// Returns all objects, in the order in which they are applied. `documents` are recorded.
#[must_use]
pub fn manifests(fleet: &HostedFleet, documents: &Documents, id: &ClusterId, options: &HostingOptions) -> Vec<Value> {
    let (namespace, id_text) = (options.namespace.as_str(), id.as_str());
    let mut objects = service_manifests(namespace, options.api_service());
    objects.extend([store_service(namespace), FleetRecord::secret(namespace, id, documents)]);
    objects.extend(host_rights(namespace));
    objects.push(files(namespace, HOST, id_text, &fleet.host_files));
    for hosted in &fleet.pods {
        let name = workload_name(hosted.role);
        objects.push(files(namespace, &name, id_text, &hosted.pod.files));
        objects.push(disruption_budget(namespace, &name));
        objects.push(workload(hosted, id_text, options));
    }
    objects.push(host(namespace, id_text, &fleet.host_image));
    objects
}

fn namespace_object(namespace: &str) -> Value {
    let mut labels = labels_of(NAME);
    labels["pod-security.kubernetes.io/enforce"] = json!("restricted");
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": labels } })
}

/// Its selector contains no id of a fleet, so that it can exist before the fleet.
fn api_service(namespace: &str, service: ApiService) -> Value {
    let mut port = json!({ "name": "https", "port": service.port(), "targetPort": API_SERVER });
    if let Some(number) = service.node_port() {
        port["nodePort"] = json!(number);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(namespace, API_SERVICE),
        "spec": {
            "type": service.service_type.as_str(),
            "selector": labels_of(API_SERVICE),
            "ports": [port],
        },
    })
}

/// Members find each other by DNS before they are ready.
fn store_service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(namespace, STORE_SERVICE),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": labels_of(STORE_SERVICE),
            "ports": [{ "name": "client", "port": 2379 }, { "name": "peer", "port": 2380 }],
        },
    })
}

fn disruption_budget(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(namespace, name),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": labels_of(name) } },
    })
}

fn files(namespace: &str, name: &str, id: &str, files: &[PodFile]) -> Value {
    let data: Map<String, Value> =
        files.iter().map(|file| (file.path.clone(), json!(STANDARD.encode(&file.content)))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": files_secret(name, id), "namespace": namespace, "labels": labels_of(name) },
        "data": data,
    })
}

/// The host may write three Events, and nothing else.
fn host_rights(namespace: &str) -> [Value; 3] {
    let events = |verb: &str| json!({ "apiGroups": [""], "resources": ["events"], "verbs": [verb] });
    let mut patch = events("patch");
    patch["resourceNames"] = json!([API_READY_EVENT, CONTROL_PLANE_READY_EVENT, CERTIFICATES_DUE_EVENT]);
    [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(namespace, HOST) }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(namespace, HOST),
            "rules": [events("create"), patch],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(namespace, HOST),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": HOST },
            "subjects": [{ "kind": "ServiceAccount", "name": HOST, "namespace": namespace }],
        }),
    ]
}

fn host(namespace: &str, id: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(namespace, HOST),
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": selected_labels(HOST, id) },
            "strategy": { "type": "Recreate" },
            "template": {
                "metadata": { "labels": selected_labels(HOST, id) },
                "spec": {
                    "serviceAccountName": HOST,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": security_context(USER),
                    "containers": [{
                        "name": "host",
                        "image": image,
                        "command": [
                            "/keelway-fleet-controller",
                            "host",
                            "--files=/etc/keelway",
                            format!("--namespace={namespace}"),
                        ],
                        "resources": { "requests": { "cpu": "10m", "memory": "24Mi" }, "limits": { "memory": "128Mi" } },
                        "securityContext": container_security(),
                        "volumeMounts": [{ "name": "files", "mountPath": "/etc/keelway", "readOnly": true }],
                    }],
                    "volumes": [secret_volume(&files_secret(HOST, id))],
                },
            },
        },
    })
}
