//! The columns of `kubectl get`.

use serde_json::{Value as Json, json};

/// A column: its name, its path in a document, and its description.
pub struct Column {
    name: &'static str,
    path: &'static str,
    says: &'static str,
    /// Whether only `-o wide` shows the column.
    wide: bool,
}

/// Returns a column.
#[must_use]
pub const fn column(name: &'static str, path: &'static str, says: &'static str) -> Column {
    Column { name, path, says, wide: false }
}

/// Returns a column that only `-o wide` shows.
#[must_use]
pub const fn wide(name: &'static str, path: &'static str, says: &'static str) -> Column {
    Column { name, path, says, wide: true }
}

/// The last column of every kind.
pub const AGE: Column = column("Age", ".metadata.creationTimestamp", "The time since the document was created.");

pub(super) const CLASS: &[Column] = &[
    column(
        "Default",
        ".metadata.annotations.keelway\\.dev/is-default-class",
        "Whether it is the class of Clusters without spec.className.",
    ),
    column("Registry", ".spec.images.registry", "The registry of images."),
    column("Clusters", ".spec.limits.clustersPerNamespace", "The maximum number of Clusters in a namespace."),
    wide("Namespaces", ".spec.namespaces", "The namespaces whose Clusters may use it."),
    wide("Versions", ".spec.versions", "The Kubernetes releases that Clusters may run."),
    AGE,
];

pub(super) const CLUSTER: &[Column] = &[
    column(
        "Ready",
        ".status.conditions[?(@.type==\"Available\")].status",
        "Whether the API server responds through every ingress.",
    ),
    column("Version", ".spec.version", "The Kubernetes release."),
    column("Endpoint", ".status.endpoints[0]", "The URL of the API server."),
    column("Etcd", ".spec.etcd.replicas", "The desired number of etcd members."),
    wide("Running", ".status.version", "The Kubernetes release that every component runs."),
    wide("API servers", ".status.replicas", "The number of API servers."),
    wide("Fleet", ".status.birth.fleet", "Whether the cluster is the control plane of a fleet."),
    wide(
        "Progressing",
        ".status.conditions[?(@.type==\"Progressing\")].reason",
        "Whether it is changing to its desired state.",
    ),
    wide("Degraded", ".status.conditions[?(@.type==\"Degraded\")].status", "Whether something is broken."),
    wide("Why", ".status.conditions[?(@.type==\"Degraded\")].message", "The reason why it is degraded."),
    wide("Class", ".status.class.name", "Its ClusterClass."),
    wide("Keelway", ".status.keelway.version", "The release of Keelway's components in the cluster."),
    wide("Id", ".status.id", "The cluster's id. Its namespace is keelway-ID."),
    AGE,
];

pub(super) const COMPONENT: &[Column] = &[
    column("Cluster", ".spec.cluster.name", "Its cluster."),
    column("Role", ".spec.role", "Its role."),
    column("Ready", ".status.conditions[?(@.type==\"Ready\")].status", "Whether it runs and passes its health check."),
    column("Stage", ".status.stage", "The stage of its lifecycle."),
    column("Version", ".spec.version", "Its Kubernetes release."),
    column("Hypervisor", ".spec.hypervisor", "The machine on which it runs."),
    wide("Why", ".status.conditions[?(@.type==\"Ready\")].message", "The reason why it is ready or not ready."),
    wide("Placement", ".spec.placement", "The reason why it was placed on that machine."),
    AGE,
];

pub(super) const HYPERVISOR: &[Column] = &[
    column("Role", ".spec.role", "The role of the machine."),
    column("Ready", ".status.conditions[?(@.type==\"Ready\")].status", "Whether it responds and can run components."),
    column("Zone", ".metadata.labels.topology\\.kubernetes\\.io/zone", "Its zone."),
    column("CPU", ".status.capacity.cpu", "The number of its CPU cores."),
    column("Memory", ".status.capacity.memory", "Its memory."),
    column("Version", ".status.nodeInfo.agentVersion", "The version of its agent, if it has one."),
    wide("Runtime", ".status.nodeInfo.containerRuntimeVersion", "Its container runtime."),
    wide("OS", ".status.nodeInfo.osImage", "Its distribution."),
    wide("Disk left", ".status.disk.available", "The available space below /var/lib/keelway."),
    wide("Unschedulable", ".spec.unschedulable", "Whether it is cordoned."),
    wide("Why", ".status.conditions[?(@.type==\"Ready\")].message", "The reason why it is ready or not ready."),
    AGE,
];

/// Writes columns to a definition.
pub(super) fn write(definition: &mut Json, columns: &[Column]) {
    let columns = columns.iter().map(|Column { name, path, says, wide }| {
        let kind = if *name == "Age" { "date" } else { "string" };
        let priority = i32::from(*wide);
        json!({"name": name, "type": kind, "jsonPath": path, "description": says, "priority": priority})
    });
    definition["spec"]["versions"][0]["additionalPrinterColumns"] = columns.collect();
}
