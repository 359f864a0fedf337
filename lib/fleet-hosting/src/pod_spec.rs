//! The spec of a Kubernetes pod from a pod of a hypervisor.

use keelway_api::{
    machine::{Container, ContainerCheck, Liveness, Pod},
    role::Role,
};
use serde_json::{Value, json};

/// The name of the volume of files, and of the directory in the pod of a hypervisor.
const FILES: &str = "files";
/// How long a container may take until its first successful probe if it has no limit, in probes. An etcd member without a quorum must not be restarted.
const UNLIMITED_STARTUP: u32 = 1_000_000;

/// Where a workload gets its files and the directories that it writes.
pub(crate) struct PodSources<'a> {
    /// The Secret with the files.
    pub(crate) secret: &'a str,
    /// Whether written directories are on a volume of their own, which outlives the pod. The workload defines it, by the name of the directory.
    pub(crate) has_claims: bool,
}

/// The spec of a pod, without its placement.
pub(crate) fn pod_spec(pod: &Pod, role: Role, sources: &PodSources<'_>) -> Value {
    let containers: Vec<Value> = pod.containers.iter().map(|container| container_spec(container, role)).collect();
    let stop_seconds = pod.containers.iter().map(|container| container.stop_seconds).max();
    let mut volumes = vec![secret_volume(sources.secret)];
    if !sources.has_claims {
        volumes.extend(pod.data.iter().map(|name| json!({ "name": name, "emptyDir": {} })));
    }
    json!({
        "automountServiceAccountToken": false,
        // Variables such as ETCD_PORT, which Services add, would be arguments of etcd.
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": stop_seconds,
        "securityContext": security_context(pod.user),
        "containers": containers,
        "volumes": volumes,
    })
}

/// The files of a Secret, which the group of the pod may read.
pub(crate) fn secret_volume(secret: &str) -> Value {
    json!({ "name": FILES, "secret": { "secretName": secret, "defaultMode": 0o440 } })
}

/// The user of a pod without privileges.
pub(crate) fn security_context(user: u32) -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// A container without privileges.
pub(crate) fn container_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    })
}

fn container_spec(container: &Container, role: Role) -> Value {
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mounts: Vec<Value> = container
        .mounts
        .iter()
        .map(|mount| json!({ "name": mount.source, "mountPath": mount.target, "readOnly": mount.read_only }))
        .collect();
    let mut spec = json!({
        "name": container.name,
        "image": container.image,
        "command": container.command,
        "env": [field("POD_NAME", "metadata.name"), field("POD_IP", "status.podIP")],
        "resources": resources(container, role),
        "securityContext": container_security(),
        "volumeMounts": mounts,
    });
    if let Some((liveness, request)) = container.liveness.as_ref().and_then(|probe| Some((probe, http_get(probe)?))) {
        spec["livenessProbe"] = probe(&request, liveness, liveness.failure_threshold);
        let attempts = liveness.startup_seconds.map_or(UNLIMITED_STARTUP, |seconds| seconds / liveness.period_seconds);
        spec["startupProbe"] = probe(&request, liveness, attempts);
        let mut ready = request;
        if let Some(path) = readiness_path(role) {
            ready["path"] = json!(path);
        }
        spec["readinessProbe"] = probe(&ready, liveness, liveness.failure_threshold);
    }
    spec
}

/// The path of readiness. None: it is that of liveness.
fn readiness_path(role: Role) -> Option<&'static str> {
    match role {
        Role::KubeControllerManager | Role::KubeScheduler => None,
        Role::Etcd
        | Role::KubeApiserver
        | Role::ClusterController
        | Role::FleetController
        | Role::Ingress
        | Role::Gateway => Some("/readyz"),
    }
}

/// A kubelet sends the request to the address of the pod, and verifies no certificate.
fn http_get(liveness: &Liveness) -> Option<Value> {
    let (scheme, address, path) = match &liveness.check {
        ContainerCheck::Https { address, path, .. } => ("HTTPS", address, path),
        ContainerCheck::Http { address, path } => ("HTTP", address, path),
        ContainerCheck::Socket { .. } => return None,
    };
    Some(json!({ "scheme": scheme, "port": address.port(), "path": path }))
}

fn probe(request: &Value, liveness: &Liveness, failures: u32) -> Value {
    json!({
        "httpGet": request,
        "periodSeconds": liveness.period_seconds,
        "timeoutSeconds": liveness.timeout_seconds,
        "failureThreshold": failures.max(1),
    })
}

/// Without a request, Kubernetes would reserve the limit.
fn resources(container: &Container, role: Role) -> Value {
    let bounds = &container.resources;
    let mut resources = json!({
        "requests": {
            "cpu": format!("{}m", bounds.cpu_request_millis),
            "memory": mebibytes(role.row().requests.memory_bytes),
        },
        "limits": { "memory": mebibytes(bounds.memory_limit_bytes) },
    });
    if let Some(millis) = bounds.cpu_limit_millis {
        resources["limits"]["cpu"] = json!(format!("{millis}m"));
    }
    resources
}

fn mebibytes(bytes: u64) -> String {
    format!("{}Mi", bytes >> 20)
}
