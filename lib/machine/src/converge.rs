//! Second level of planning: the actions that lead from the observed state of a machine to its config. Pure functions.

mod pod;
mod revival;
mod servers;
mod tree;

#[cfg(any(test, feature = "testing"))]
pub mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    hypervisor::Applied,
    machine::{MachineConfig, MachineState, PodDigests},
    name::{ClusterId, ComponentName, PodName},
};

pub use revival::revive;

use crate::{
    action::Action,
    layout::is_ours,
    refusal::{self, ConfigRefusal},
};

/// Returns the actions that make the machine match the config, in order. Empty if it matches and the config is recorded.
///
/// # Errors
/// Returns an error if the machine must not accept the config.
pub fn converge(config: &MachineConfig, state: &MachineState) -> Result<Vec<Action>, ConfigRefusal> {
    converge_to(&DesiredConfig { config, fence: &applied_by(config), digests: &config.pod_digests() }, state)
}

/// A config with its digests, which are the most expensive part to compute.
#[derive(Debug, Clone, Copy)]
pub struct DesiredConfig<'a> {
    /// The config.
    pub config: &'a MachineConfig,
    /// The number and digest of the config.
    pub fence: &'a Applied,
    /// The digests of the config's pods, as its driver computed them.
    pub digests: &'a BTreeMap<PodName, PodDigests>,
}

/// As [`converge`], for a caller that has the digests.
///
/// # Errors
/// As [`converge`].
pub fn converge_to(wanted: &DesiredConfig<'_>, state: &MachineState) -> Result<Vec<Action>, ConfigRefusal> {
    let DesiredConfig { config, fence, .. } = *wanted;
    check((config, fence), state)?;
    let mut actions = Vec::new();
    if state.owner.is_none() && !config.pods.is_empty() {
        actions.push(Action::WriteOwner(config.installation.clone()));
    }
    let mut names = pods_seen(state);
    // A pod that the config does not mention may belong to another driver. Pods are removed only of clusters that the documents contain and that are
    // not paused.
    names.retain(|name| !config.others.contains(&name.cluster));
    names.extend(config.pods.keys().cloned());
    actions.extend(names.iter().flat_map(|name| converge_pod(wanted, name, state)));
    actions.extend(plan_forgetting(config, state));
    actions.extend(plan_record((config, fence), state));
    Ok(actions)
}

/// Returns the actions for one pod, if the machine may accept the config.
#[must_use]
pub fn converge_pod(wanted: &DesiredConfig<'_>, name: &PodName, state: &MachineState) -> Vec<Action> {
    let DesiredConfig { config, digests, .. } = *wanted;
    let steps = match (config.pods.get(name), digests.get(name)) {
        (Some(pod), Some(digests)) => pod::plan_wanted(name, (pod, digests), state),
        // Each pod is sent with its digests. Without them, the agent cannot decide whether to replace the pod.
        (Some(_), None) => Vec::new(),
        // The data of an etcd member is removed by an order that names it, and never because the config lacks the member.
        (None, _) if keeps_data(config, name, state) => Vec::new(),
        (None, _) => pod::plan_removal(name, state),
    };
    steps.into_iter().map(|step| Action::Pod(name.clone(), step)).collect()
}

/// Returns whether an etcd member outside of the config stays as it is, because no order names its data.
fn keeps_data(config: &MachineConfig, name: &PodName, state: &MachineState) -> bool {
    state.has_marked_data(name) && !config.removals.contains_key(name)
}

/// Checks whether a machine may accept a config, for a caller that leaves planning to the machine's agent.
///
/// # Errors
/// As [`converge`].
pub fn check((config, fence): (&MachineConfig, &Applied), state: &MachineState) -> Result<(), ConfigRefusal> {
    refusal::check_fence((config, fence), state)?;
    refusal::check_content(config)
}

/// Returns the record of an applied config, as its driver computes it.
#[must_use]
pub fn applied_by(config: &MachineConfig) -> Applied {
    Applied { term: config.term, generation: config.generation, digest: config.digest() }
}

/// Returns whether work remains until connections have ended. haproxy does not report their end.
#[must_use]
pub fn waits_for_connections(config: &MachineConfig, state: &MachineState) -> bool {
    let with_servers = config.pods.iter().filter_map(|(name, pod)| Some((name, pod.servers.as_ref()?)));
    with_servers.into_iter().any(|(name, wanted)| servers::waits_for_connections(name, wanted, state))
}

/// Returns the pods that have a sandbox or a directory on the machine.
fn pods_seen(state: &MachineState) -> BTreeSet<PodName> {
    let of_sandboxes = state.sandboxes.iter().map(|sandbox| sandbox.pod.clone());
    of_sandboxes.chain(state.files.keys().filter_map(|path| pod_of(path))).collect()
}

fn pod_of(path: &str) -> Option<PodName> {
    let (cluster, component) = path.split_once('/')?;
    Some(PodName { cluster: cluster.parse().ok()?, component: component.parse::<ComponentName>().ok()? })
}

/// Returns the pods that are not in the config and whose data no order names.
fn pods_kept<'a>(config: &'a MachineConfig, state: &'a MachineState) -> impl Iterator<Item = PodName> + 'a {
    let unwanted = state.pods_with_marked_data().filter(|pod| !config.pods.contains_key(pod));
    unwanted.filter(|pod| !config.removals.contains_key(pod))
}

/// Removes what is left of clusters that have no pod on the machine any more.
fn plan_forgetting(config: &MachineConfig, state: &MachineState) -> Vec<Action> {
    let of_files = state.files.keys().filter_map(|path| path.parse::<ClusterId>().ok());
    let of_pods = pods_seen(state).into_iter().map(|pod| pod.cluster);
    let seen: BTreeSet<_> = of_files.chain(of_pods).collect();
    let kept = pods_kept(config, state).map(|pod| pod.cluster);
    let wanted =
        config.pods.keys().map(|pod| pod.cluster.clone()).chain(config.others.iter().cloned()).chain(kept).collect();
    seen.difference(&wanted).cloned().map(Action::ForgetCluster).collect()
}

/// Records the config, or removes all records if the machine holds nothing any more.
fn plan_record((config, fence): (&MachineConfig, &Applied), state: &MachineState) -> Option<Action> {
    if config.pods.is_empty() && config.others.is_empty() && pods_kept(config, state).next().is_none() {
        let made_by_us = state.files.get("").is_some_and(|top| is_ours(top.mode));
        return (made_by_us || state.owner.is_some() || state.applied.is_some()).then_some(Action::Leave);
    }
    // A config number has one content: the agent refused any other.
    let is_recorded = |applied: &Applied| (applied.term, applied.generation) == (config.term, config.generation);
    (!state.applied.as_ref().is_some_and(is_recorded)).then(|| Action::RecordApplied(fence.clone()))
}
