//! A checker of configs: what no machine may be sent, whichever code built the config.
//!
//! The checker follows the rules alone. It shares only the documents with the code that it checks.

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Component, Documents, Hypervisor,
    cluster::RemovalReason,
    machine::{DataRemoval, MachineConfig, MachineState},
    name::{ClusterId, HypervisorName, PodName},
};

use crate::violation::Violation;

/// Returns every rule that a config for a machine breaks. `has` returns whether the config has a pod: the config for an agent may name a pod
/// without its content.
#[must_use]
pub fn check_config(
    documents: &Documents,
    (machine, state): (&HypervisorName, &MachineState),
    config: &MachineConfig,
    has: impl Fn(&PodName) -> bool,
) -> Vec<Violation> {
    let lost = lost_components(documents, (machine, state), config, has);
    let lost = lost
        .into_iter()
        .map(|what| Violation { invariant: "a placed component is in the config of its machine", what });
    let unordered = unordered_removals(documents, machine, config);
    let unordered = unordered
        .map(|what| Violation { invariant: "the data of a member is removed by an order in the documents", what });
    let unknown = (config.format.number() < state.formats.first || config.format.number() > state.formats.last)
        .then(|| format!("format {} for a machine that supports {}", config.format.number(), state.formats));
    let unknown = unknown.map(|what| Violation { invariant: "a config has a format that its machine supports", what });
    lost.chain(unordered).chain(unknown).collect()
}

/// Components that are placed on the machine and held by it, and that the config would stop.
fn lost_components(
    documents: &Documents,
    (machine, state): (&HypervisorName, &MachineState),
    config: &MachineConfig,
    has: impl Fn(&PodName) -> bool,
) -> Vec<String> {
    let is_lost = |pod: &PodName, component: &Component| {
        let cluster = documents.clusters.get(&component.spec.cluster);
        let is_deleted = cluster.is_some_and(|cluster| cluster.deleted() && !cluster.spec.paused);
        let stays = !component.is_stopping() && !is_deleted && state.holds(pod);
        component.spec.hypervisor == *machine && stays && !has(pod)
    };
    let mut lost = Vec::new();
    let clusters: BTreeSet<ClusterId> = state.clusters().filter(|id| !config.others.contains(id)).collect();
    for id in &clusters {
        let here = documents.components_of(id).filter(|(pod, component)| is_lost(pod, component));
        lost.extend(here.map(|(pod, _)| pod.to_string()));
    }
    lost
}

fn unordered_removals<'a>(
    documents: &'a Documents,
    machine: &'a HypervisorName,
    config: &'a MachineConfig,
) -> impl Iterator<Item = String> + 'a {
    let unordered = config.removals.iter().filter(|(pod, removal)| !is_ordered(documents, machine, pod, removal));
    unordered.map(|(pod, removal)| format!("{pod} (member {})", removal.member))
}

/// Whether the documents order the removal: the Cluster, if it is deleted or its store removed the member, or the Hypervisor if the Cluster is gone.
fn is_ordered(documents: &Documents, machine: &HypervisorName, pod: &PodName, removal: &DataRemoval) -> bool {
    match documents.clusters.values().find(|cluster| cluster.id() == Some(&pod.cluster)) {
        Some(cluster) => is_ordered_by_cluster(cluster, pod, removal),
        None => documents.hypervisors.get(machine).is_some_and(|machine| is_ordered_by_machine(machine, pod, removal)),
    }
}

fn is_ordered_by_cluster(cluster: &Cluster, pod: &PodName, removal: &DataRemoval) -> bool {
    let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
    let member = store.and_then(|store| store.members.get(&pod.component));
    member.filter(|member| cluster.deleted() || member.is_removed()).is_some_and(|member| {
        member.id == removal.member && member.removal.map(RemovalReason::as_str) == Some(removal.reason.as_str())
    })
}

fn is_ordered_by_machine(machine: &Hypervisor, pod: &PodName, removal: &DataRemoval) -> bool {
    let abandoned = machine.status.as_ref().and_then(|status| status.abandoned.get(&pod.cluster));
    abandoned.and_then(|abandoned| abandoned.members.get(&pod.component)) == Some(&removal.member)
        && removal.reason == RemovalReason::ClusterDeleted.as_str()
}
