//! Names that the parts of a fleet agree on.

use keelway_api::{
    machine::sha256_hex,
    name::{is_label, is_subdomain},
};

use crate::WorkloadRef;

/// The API group of a fleet's kinds.
pub const GROUP: &str = "fleet.keelway.dev";
/// The category of a fleet's kinds: `kubectl get keelway-fleet`.
pub const CATEGORY: &str = "keelway-fleet";

/// The Event in a hosting cluster that reports that the API of the fleet serves. Its name is its reason.
pub const API_READY_EVENT: &str = "FleetAPIServerReady";
/// The Event in a hosting cluster that reports that the fleet-controller works and that the API serves the kinds of a fleet. Its name is its reason.
pub const CONTROL_PLANE_READY_EVENT: &str = "FleetControlPlaneReady";

/// The Warning in a hosting cluster that the certificates of the fleet have to be renewed. Its name is its reason.
pub const CERTIFICATES_DUE_EVENT: &str = "FleetCertificatesDue";

/// The annotation of an object that names the one cluster in which it runs.
pub const CLUSTER_ANNOTATION: &str = "fleet.keelway.dev/cluster";
/// The annotation of an object that names the clusters over which it is spread, separated by commas.
pub const SPREAD_ONTO_ANNOTATION: &str = "fleet.keelway.dev/spread-onto";
/// The label of a Placement with the cluster of its object, if there is one. An object with pods has it as well while it is delegated to another
/// orchestrator, which reads there where to submit it.
pub const TARGET_CLUSTER_LABEL: &str = "fleet.keelway.dev/target-cluster";
/// The label of an object in a workload cluster that another orchestrator submitted there. Its value is [`SCHEDULE_TRUE`].
pub const SCHEDULE_LABEL: &str = "fleet.keelway.dev/schedule";
/// The value of [`SCHEDULE_LABEL`]. Objects with another one are not tracked.
pub const SCHEDULE_TRUE: &str = "true";
/// The label of a Placement with the policy that selected its object, and of an Event about it.
pub const MATCHED_POLICY_LABEL: &str = "fleet.keelway.dev/matched-policy";
/// The label of all Works, and of Leases and credentials, with their cluster.
pub const CLUSTER_LABEL: &str = "fleet.keelway.dev/cluster";
/// The label of namespaces, clusters and other objects with their own name.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The label of a cluster with `spec.provider`.
pub const PROVIDER_LABEL: &str = "fleet.keelway.dev/provider";
/// The label of a cluster with `spec.region`.
pub const REGION_LABEL: &str = "fleet.keelway.dev/region";
/// The label of a cluster with `spec.zone`.
pub const ZONE_LABEL: &str = "fleet.keelway.dev/zone";
/// The label of a cluster with the minor version of its Kubernetes, such as `1.37`.
pub const VERSION_LABEL: &str = "fleet.keelway.dev/version";

/// The annotation of a Cluster that decides what its removal does with the objects that run there. Without it, they stay.
pub const WORKLOADS_ANNOTATION: &str = "fleet.keelway.dev/workloads";
/// The value of [`WORKLOADS_ANNOTATION`] that deletes the objects.
pub const WORKLOADS_DELETE: &str = "Delete";
/// The value of [`WORKLOADS_ANNOTATION`] that keeps the objects, as all others do.
pub const WORKLOADS_KEEP: &str = "Keep";

/// The finalizer of a Work. The agent removes it once the object is deleted in its cluster.
pub const WORK_FINALIZER: &str = "fleet.keelway.dev/agent";
/// The field manager with which agents apply objects in their clusters.
pub const AGENT_FIELD_MANAGER: &str = "keelway-fleet-agent";
/// The field manager of the fleet controller in the fleet.
pub const CONTROLLER_FIELD_MANAGER: &str = "keelway-fleet-controller";
/// The user of the fleet controller.
pub const CONTROLLER_USER: &str = "keelway:fleet-controller";
/// The group of all agents in the fleet.
pub const AGENTS_GROUP: &str = "keelway:fleet-agents";
/// The signer of the certificates of agents.
pub const AGENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The prefix of an agent's user in the fleet.
const AGENT_USER: &str = "keelway:fleet-agent:";

/// The namespace of the Placements of objects without a namespace, and of the agent in a workload cluster.
pub const FLEET_NAMESPACE: &str = "keelway-fleet";
/// The ConfigMap in `kube-system` of the fleet with the kinds whose pods are not where those of Kubernetes' own kinds are.
pub const POD_KINDS: &str = "keelway-fleet-pod-kinds";
/// The Lease in a cluster's namespace that its agent renews.
pub const AGENT_LEASE: &str = "agent";
/// The time in seconds after which a cluster whose agent renews nothing is no longer ready.
pub const AGENT_LEASE_SECONDS: i32 = 40;
/// The Secret in the workload cluster with the agent's token.
pub const TOKEN_SECRET: &str = "keelway-fleet-token";
/// The Secret in the workload cluster with the agent's key, certificate and state.
pub const AGENT_SECRET: &str = "keelway-fleet-agent";
/// The prefix of the namespace of a cluster's Works.
const WORKS_NAMESPACE: &str = "fleet-";

/// The reason of the Event that names the policy that selected an object.
pub const EVENT_MATCHED: &str = "SchedulePolicyMatched";
/// The reason of the Warning that names the policies that selected an object and lost.
pub const EVENT_LOST: &str = "SchedulePolicyIgnored";
/// The reason of the Event that an object moves.
pub const EVENT_MOVING: &str = "Moving";
/// The reason of a cluster that an object has to leave and cannot. It is the reason of a Warning, too.
pub const REASON_CANNOT_MOVE: &str = "CannotMove";
/// The reason of a cluster that an object does not leave before others, which may need it.
pub const REASON_NEEDED: &str = "Needed";

/// The reason of a Placement whose object another orchestrator submits in the cluster that the fleet chose.
pub const REASON_DELEGATED: &str = "Delegated";
/// The reason of an object that another orchestrator has to submit, and has not submitted yet.
pub const REASON_NOT_SUBMITTED: &str = "NotSubmitted";
/// The reason of an object that another orchestrator submitted, and that the agent tracks.
pub const REASON_TRACKED: &str = "Tracked";
/// The reason of a cluster with delegated objects for an object that is spread.
pub const REASON_SPREAD_REFUSED: &str = "SpreadRefused";

/// The longest name of a workload cluster. The namespace of its Works is an RFC 1123 label.
pub const LONGEST_CLUSTER_NAME: usize = 63 - WORKS_NAMESPACE.len();
/// The longest name of an object in Kubernetes.
const LONGEST_OBJECT_NAME: usize = 253;
/// The number of hexadecimal digits of a hash in a name.
const HASH: usize = 16;

/// Whether a text can be the name of a workload cluster.
#[must_use]
pub fn is_cluster_name(text: &str) -> bool {
    is_label(text, LONGEST_CLUSTER_NAME)
}

/// Returns the namespace of a cluster's Works.
#[must_use]
pub fn works_namespace(cluster: &str) -> String {
    format!("{WORKS_NAMESPACE}{cluster}")
}

/// Returns the cluster whose Works are in a namespace, or `None` for other namespaces.
#[must_use]
pub fn cluster_of_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(WORKS_NAMESPACE).filter(|cluster| is_cluster_name(cluster))
}

/// Returns the user of a cluster's agent in the fleet.
#[must_use]
pub fn agent_user(cluster: &str) -> String {
    format!("{AGENT_USER}{cluster}")
}

/// Returns the cluster of an agent's user, or `None` for other users.
#[must_use]
pub fn cluster_of_agent(user: &str) -> Option<&str> {
    user.strip_prefix(AGENT_USER).filter(|cluster| is_cluster_name(cluster))
}

/// Returns the namespace of an object's Placement.
#[must_use]
pub fn placement_namespace(object: &WorkloadRef) -> &str {
    object.namespace.as_deref().unwrap_or(FLEET_NAMESPACE)
}

/// Returns the name of an object's Placement: `deployment.apps.web`.
#[must_use]
pub fn placement_name(object: &WorkloadRef) -> String {
    named(kind_and_group(object), &object.name)
}

/// Returns the name of an object's Work in the namespace of each cluster: `deployment.apps.shop.web`.
#[must_use]
pub fn work_name(object: &WorkloadRef) -> String {
    match &object.namespace {
        Some(namespace) => named(format!("{}.{namespace}", kind_and_group(object)), &object.name),
        None => placement_name(object),
    }
}

fn kind_and_group(object: &WorkloadRef) -> String {
    let group = if object.group.is_empty() { "core" } else { &object.group };
    format!("{}.{group}", object.kind.to_lowercase())
}

/// Appends a name to what is before it. The name is one label, so that different objects have different names: a hash replaces what cannot be in one.
fn named(before: String, name: &str) -> String {
    let whole = format!("{before}.{name}");
    if is_label(name, 63) && is_subdomain(&whole) {
        return whole;
    }
    let hash = sha256_hex(whole.as_bytes());
    let hash = &hash[..HASH];
    let before = if before.len() + HASH + 1 > LONGEST_OBJECT_NAME || !is_subdomain(&before) {
        sha256_hex(before.as_bytes())[..HASH].to_owned()
    } else {
        before
    };
    let room = (LONGEST_OBJECT_NAME - before.len() - 1).min(63) - HASH - 1;
    let readable: String =
        name.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let readable = readable.get(..room.min(readable.len())).unwrap_or_default().trim_matches('-');
    match readable {
        "" => format!("{before}.{hash}"),
        readable => format!("{before}.{readable}-{hash}"),
    }
}

/// Returns the minor version of a release of Kubernetes, as [`VERSION_LABEL`] has it: `v1.37.0+k3s1` is `1.37`.
#[must_use]
pub fn minor_version(version: &str) -> Option<String> {
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next()?, parts.next()?);
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>();
    let (major, minor) = (digits(major), digits(minor));
    (!major.is_empty() && !minor.is_empty()).then(|| [major, minor].join("."))
}
