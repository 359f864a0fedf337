//! The columns of `kubectl get`.

use keelway_api::crd::columns::{AGE, Column, column, wide};

pub(super) const CLUSTER: &[Column] = &[
    column("K8s-Version", ".status.kubernetesVersion", "The release of Kubernetes that it runs."),
    column("Region", ".spec.region", "Its region."),
    column("Zone", ".spec.zone", "Its zone."),
    column(
        "Ready",
        ".status.conditions[?(@.type==\"Ready\")].status",
        "Whether its agent reports, and reaches the API server of the cluster.",
    ),
    column(
        "Idle",
        ".status.conditions[?(@.type==\"Idle\")].status",
        "Whether the fleet runs nothing there that uses resources.",
    ),
    column(
        "Standby",
        ".status.conditions[?(@.type==\"Standby\")].status",
        "Always False: the fleet puts no cluster to sleep.",
    ),
    wide("Provider", ".spec.provider", "Its provider."),
    wide("Unschedulable", ".spec.unschedulable", "Whether it is cordoned."),
    wide("Nodes", ".status.capacity.nodes", "The number of its nodes."),
    wide("Free-CPU", ".status.capacity.free.cpu", "The CPUs that are free on its nodes together."),
    wide("Free-Memory", ".status.capacity.free.memory", "The memory in bytes that is free on its nodes together."),
    wide("Orchestration", ".status.orchestrationEnabled", "Whether its agent applies objects."),
    wide("Agent", ".status.agentVersion", "The release of its agent."),
    wide("Why", ".status.conditions[?(@.type==\"Ready\")].message", "The reason why it is ready or not ready."),
    AGE,
];

pub(super) const POLICY: &[Column] = &[
    column("Priority", ".spec.priority", "The policy with the highest priority decides."),
    column("Spread", ".spec.spreadConstraints.spreadMode", "How objects are spread over clusters."),
    wide(
        "Topology",
        ".spec.spreadConstraints.topologyKey",
        "The label of clusters over whose values objects are spread.",
    ),
    wide("Conflicts", ".spec.conflictResolution", "What happens to objects that exist in a cluster."),
    wide("Drift", ".spec.drift", "What happens if a field is changed in a cluster."),
    AGE,
];

pub(super) const PLACEMENT: &[Column] = &[
    column("Kind", ".spec.object.kind", "The kind of the object."),
    column("Object", ".spec.object.name", "The name of the object."),
    column("Policy", ".spec.policy", "The policy that decides."),
    column("Clusters", ".spec.clusters[*].name", "The clusters that run the object."),
    column(
        "State",
        ".status.conditions[?(@.type==\"Scheduled\")].reason",
        "Whether there is a cluster for it, and whether another orchestrator submits it there.",
    ),
    column("Applied", ".status.conditions[?(@.type==\"Applied\")].status", "Whether each cluster has applied it."),
    wide(
        "Why",
        ".status.conditions[?(@.type==\"Scheduled\")].message",
        "The clusters that run the object, with the reason if there is one, or why no cluster runs it.",
    ),
    AGE,
];

pub(super) const WORK: &[Column] = &[
    column("Kind", ".spec.manifest.kind", "The kind of the object."),
    column("Namespace", ".spec.manifest.metadata.namespace", "The namespace of the object."),
    column("Object", ".spec.manifest.metadata.name", "The name of the object."),
    column("Applied", ".status.conditions[?(@.type==\"Applied\")].status", "Whether the agent has applied it."),
    wide("Why", ".status.conditions[?(@.type==\"Applied\")].message", "Why it is applied or not applied."),
    AGE,
];
