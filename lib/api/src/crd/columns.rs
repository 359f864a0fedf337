//! The columns of `kubectl get`.

use serde_json::{Value as Json, json};

/// A column: its name, its path in a document, and its description.
pub(super) struct Column {
    name: &'static str,
    path: &'static str,
    says: &'static str,
    /// Whether only `-o wide` shows the column.
    wide: bool,
}

const fn column(name: &'static str, path: &'static str, says: &'static str) -> Column {
    Column { name, path, says, wide: false }
}

const fn wide(name: &'static str, path: &'static str, says: &'static str) -> Column {
    Column { name, path, says, wide: true }
}

const AGE: Column = column("Age", ".metadata.creationTimestamp", "How long the document is there.");

pub(super) const CLASS: &[Column] = &[
    column(
        "Default",
        ".metadata.annotations.keelway\\.dev/is-default-class",
        "Whether Clusters that name no class are of it.",
    ),
    column("Registry", ".spec.images.registry", "Where images come from."),
    column("Clusters", ".spec.limits.clustersPerNamespace", "The most Clusters in a namespace."),
    wide("Namespaces", ".spec.namespaces", "Namespaces whose Clusters may be of it."),
    wide("Versions", ".spec.versions", "Kubernetes releases that Clusters may run."),
    AGE,
];

pub(super) const CLUSTER: &[Column] = &[
    column(
        "Ready",
        ".status.conditions[?(@.type==\"Available\")].status",
        "Whether the API serves through every ingress.",
    ),
    column("Version", ".spec.version", "The Kubernetes release."),
    column("Endpoint", ".status.endpoints[0]", "Where users reach the API."),
    column("Etcd", ".spec.etcd.replicas", "Members of the store that are wanted."),
    wide("API servers", ".status.replicas", "API servers that there are."),
    wide(
        "Progressing",
        ".status.conditions[?(@.type==\"Progressing\")].reason",
        "Whether it is on its way to what its document says.",
    ),
    wide("Degraded", ".status.conditions[?(@.type==\"Degraded\")].status", "Whether something is broken."),
    wide("Why", ".status.conditions[?(@.type==\"Degraded\")].message", "What is broken."),
    wide("Class", ".status.class.name", "The ClusterClass that it is of."),
    wide("Keelway", ".status.keelway.version", "The release of Keelway's own parts of the cluster."),
    wide("Id", ".status.id", "The cluster's id. Its namespace is keelway-ID."),
    AGE,
];

pub(super) const COMPONENT: &[Column] = &[
    column("Cluster", ".spec.cluster.name", "The cluster that it is of."),
    column("Role", ".spec.role", "What it does."),
    column("Ready", ".status.conditions[?(@.type==\"Ready\")].status", "Whether it runs and answers its health check."),
    column("Stage", ".status.stage", "Where it is in its life."),
    column("Version", ".spec.version", "The Kubernetes release that it runs as part of."),
    column("Hypervisor", ".spec.hypervisor", "The machine that holds it."),
    wide("Why", ".status.conditions[?(@.type==\"Ready\")].message", "Why it is ready, or is not."),
    wide("Placement", ".spec.placement", "Why it is on that machine."),
    AGE,
];

pub(super) const HYPERVISOR: &[Column] = &[
    column("Role", ".spec.role", "What the machine is for."),
    column("Ready", ".status.conditions[?(@.type==\"Ready\")].status", "Whether it answers and can run components."),
    column("Zone", ".metadata.labels.topology\\.kubernetes\\.io/zone", "Where it stands."),
    column("CPU", ".status.capacity.cpu", "Its cores."),
    column("Memory", ".status.capacity.memory", "Its memory."),
    column("Version", ".status.nodeInfo.agentVersion", "The version of its agent, where it has one."),
    wide("Runtime", ".status.nodeInfo.containerRuntimeVersion", "Its container runtime."),
    wide("OS", ".status.nodeInfo.osImage", "Its distribution."),
    wide("Disk left", ".status.disk.available", "What may still be written below /var/lib/keelway."),
    wide("Unschedulable", ".spec.unschedulable", "Whether nothing more is placed on it."),
    wide("Why", ".status.conditions[?(@.type==\"Ready\")].message", "Why it is ready, or is not."),
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
