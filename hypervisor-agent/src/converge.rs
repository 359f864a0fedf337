//! The second level of planning: what a machine should hold and what it holds, to what is to be done. Pure.

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

pub(crate) use revival::revive;

use crate::{
    action::Action,
    files::is_ours,
    refusal::{self, ConfigRefusal},
};

/// What is to be done on a machine, in order. Empty where the machine holds what it should, and the config is recorded.
///
/// # Errors
/// The machine takes nothing of the config.
pub fn converge(config: &MachineConfig, state: &MachineState) -> Result<Vec<Action>, ConfigRefusal> {
    converge_to(&DesiredConfig { config, fence: &applied_by(config), digests: &config.pod_digests() }, state)
}

/// A config, with what takes longer to make of it than all else.
#[derive(Debug, Clone, Copy)]
pub struct DesiredConfig<'a> {
    /// The config.
    pub config: &'a MachineConfig,
    /// Its number, and its digest.
    pub fence: &'a Applied,
    /// The digests of its pods, as its driver made them.
    pub digests: &'a BTreeMap<PodName, PodDigests>,
}

/// The same for who knows the digests.
///
/// # Errors
/// As of [`converge`].
pub fn converge_to(wanted: &DesiredConfig<'_>, state: &MachineState) -> Result<Vec<Action>, ConfigRefusal> {
    let DesiredConfig { config, fence, .. } = *wanted;
    check((config, fence), state)?;
    let mut actions = Vec::new();
    if state.owner.is_none() && !config.pods.is_empty() {
        actions.push(Action::WriteOwner(config.installation.clone()));
    }
    let mut names = pods_seen(state);
    // What nobody tells of is somebody's: only a cluster that the documents tell of, and that is not paused, loses its pods.
    names.retain(|name| !config.others.contains(&name.cluster));
    names.extend(config.pods.keys().cloned());
    actions.extend(names.iter().flat_map(|name| converge_pod(wanted, name, state)));
    actions.extend(plan_forgetting(config, state));
    actions.extend(plan_record((config, fence), state));
    Ok(actions)
}

/// What of that is to be done of one pod, where the machine may take the config.
pub(crate) fn converge_pod(wanted: &DesiredConfig<'_>, name: &PodName, state: &MachineState) -> Vec<Action> {
    let DesiredConfig { config, digests, .. } = *wanted;
    let steps = match (config.pods.get(name), digests.get(name)) {
        (Some(pod), Some(digests)) => pod::plan_wanted(name, (pod, digests), state),
        // Each pod comes with them. Nobody can tell whether one without them is to be replaced.
        (Some(_), None) => Vec::new(),
        // The data of an etcd member is removed by an order that names it, and never because nobody asks for it.
        (None, _) if keeps_data(config, name, state) => Vec::new(),
        (None, _) => pod::plan_removal(name, state),
    };
    steps.into_iter().map(|step| Action::Pod(name.clone(), step)).collect()
}

/// Whether an etcd member that the config does not ask for stays as it is: no order names its data.
fn keeps_data(config: &MachineConfig, name: &PodName, state: &MachineState) -> bool {
    state.has_marked_data(name) && !config.removals.contains_key(name)
}

/// Whether a machine may take a config at all, for who leaves it to the machine's agent what is to be done.
///
/// # Errors
/// As of [`converge`].
pub fn check((config, fence): (&MachineConfig, &Applied), state: &MachineState) -> Result<(), ConfigRefusal> {
    refusal::check_fence((config, fence), state)?;
    refusal::check_content(config)
}

/// What is recorded once a config is applied, as its driver makes it.
#[must_use]
pub fn applied_by(config: &MachineConfig) -> Applied {
    Applied { term: config.term, generation: config.generation, digest: config.digest() }
}

/// Whether something is left to do once connections have ended, of which nobody tells.
#[must_use]
pub fn waits_for_connections(config: &MachineConfig, state: &MachineState) -> bool {
    let with_servers = config.pods.iter().filter_map(|(name, pod)| Some((name, pod.servers.as_ref()?)));
    with_servers.into_iter().any(|(name, wanted)| servers::waits_for_connections(name, wanted, state))
}

/// Pods that have a sandbox or a directory on the machine.
fn pods_seen(state: &MachineState) -> BTreeSet<PodName> {
    let of_sandboxes = state.sandboxes.iter().map(|sandbox| sandbox.pod.clone());
    of_sandboxes.chain(state.files.keys().filter_map(|path| pod_of(path))).collect()
}

fn pod_of(path: &str) -> Option<PodName> {
    let (cluster, component) = path.split_once('/')?;
    Some(PodName { cluster: cluster.parse().ok()?, component: component.parse::<ComponentName>().ok()? })
}

/// Pods that the config does not ask for and whose data no order names.
fn pods_kept<'a>(config: &'a MachineConfig, state: &'a MachineState) -> impl Iterator<Item = PodName> + 'a {
    let unwanted = state.pods_with_marked_data().filter(|pod| !config.pods.contains_key(pod));
    unwanted.filter(|pod| !config.removals.contains_key(pod))
}

/// Clusters that were on the machine and have no pod on it any more.
fn plan_forgetting(config: &MachineConfig, state: &MachineState) -> Vec<Action> {
    let of_files = state.files.keys().filter_map(|path| path.parse::<ClusterId>().ok());
    let of_pods = pods_seen(state).into_iter().map(|pod| pod.cluster);
    let seen: BTreeSet<_> = of_files.chain(of_pods).collect();
    let kept = pods_kept(config, state).map(|pod| pod.cluster);
    let wanted =
        config.pods.keys().map(|pod| pod.cluster.clone()).chain(config.others.iter().cloned()).chain(kept).collect();
    seen.difference(&wanted).cloned().map(Action::ForgetCluster).collect()
}

/// A machine that holds nothing has nothing to remember, and is left as it was found.
fn plan_record((config, fence): (&MachineConfig, &Applied), state: &MachineState) -> Option<Action> {
    if config.pods.is_empty() && config.others.is_empty() && pods_kept(config, state).next().is_none() {
        let made_by_us = state.files.get("").is_some_and(|top| is_ours(top.mode));
        return (made_by_us || state.owner.is_some() || state.applied.is_some()).then_some(Action::Leave);
    }
    // Of one number is one content: another one was refused.
    let is_recorded = |applied: &Applied| (applied.term, applied.generation) == (config.term, config.generation);
    (!state.applied.as_ref().is_some_and(is_recorded)).then(|| Action::RecordApplied(fence.clone()))
}
