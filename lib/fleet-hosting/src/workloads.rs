//! The workload of each role: a StatefulSet for etcd, and Deployments for everything else.

use keelway_api::role::Role;
use keelway_planner::{HostedPod, STORE_SERVICE};
use serde_json::{Value, json};

use crate::{
    HostingOptions,
    metadata::{labels_of, metadata, selected_labels},
    pod_spec::{PodSources, pod_spec},
};

/// The annotation with the digest of what requires new pods: images, arguments, and files that a program reads at its start.
const DIGEST: &str = "fleet.keelway.dev/digest";

/// The name of the objects of a role.
pub(crate) fn workload_name(role: Role) -> String {
    if role == Role::FleetController { format!("keelway-{role}") } else { role.to_string() }
}

/// The Secret with the files of a workload.
pub(crate) fn files_secret(workload: &str, id: &str) -> String {
    format!("{workload}-{id}")
}

/// The workload of a role.
pub(crate) fn workload(hosted: &HostedPod, id: &str, options: &HostingOptions) -> Value {
    if hosted.role == Role::Etcd { stateful_set(hosted, id, options) } else { deployment(hosted, id, options) }
}

/// All members start at once, because none is ready without a majority. Their names are those of the first members in the arguments.
fn stateful_set(hosted: &HostedPod, id: &str, options: &HostingOptions) -> Value {
    let name = workload_name(hosted.role);
    let claims: Vec<Value> = hosted.pod.data.iter().map(|directory| claim(directory, &name, id, options)).collect();
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(&options.namespace, &name),
        "spec": {
            "replicas": hosted.replicas,
            "serviceName": STORE_SERVICE,
            "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": selected_labels(&name, id) },
            "template": template(hosted, id, true),
            "volumeClaimTemplates": claims,
        },
    })
}

fn claim(directory: &str, name: &str, id: &str, options: &HostingOptions) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": options.storage_size } },
    });
    if let Some(class) = &options.storage_class {
        spec["storageClassName"] = json!(class);
    }
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": directory, "labels": selected_labels(name, id) },
        "spec": spec,
    })
}

/// With several replicas, one is replaced after the other, so that each finds a node without a replica. A single one starts before the old one stops.
fn deployment(hosted: &HostedPod, id: &str, options: &HostingOptions) -> Value {
    let name = workload_name(hosted.role);
    let (surge, unavailable) = if hosted.replicas > 1 { (0, 1) } else { (1, 0) };
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(&options.namespace, &name),
        "spec": {
            "replicas": hosted.replicas,
            "selector": { "matchLabels": selected_labels(&name, id) },
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable },
            },
            "template": template(hosted, id, false),
        },
    })
}

fn template(hosted: &HostedPod, id: &str, has_claims: bool) -> Value {
    let name = workload_name(hosted.role);
    let sources = PodSources { secret: &files_secret(&name, id), has_claims };
    let mut spec = pod_spec(&hosted.pod, hosted.role, &sources);
    if hosted.replicas > 1 {
        spec["affinity"] = anti_affinity(&name);
    }
    json!({
        "metadata": {
            "labels": selected_labels(&name, id),
            "annotations": { DIGEST: hosted.pod.digest() },
        },
        "spec": spec,
    })
}

/// Two replicas never share a host, because the loss of one would take the majority of etcd. They share a zone only if there is no other.
fn anti_affinity(name: &str) -> Value {
    let apart = |key: &str| json!({ "topologyKey": key, "labelSelector": { "matchLabels": labels_of(name) } });
    json!({
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [apart("kubernetes.io/hostname")],
            "preferredDuringSchedulingIgnoredDuringExecution": [
                { "weight": 100, "podAffinityTerm": apart("topology.kubernetes.io/zone") },
            ],
        },
    })
}
