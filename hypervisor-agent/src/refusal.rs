//! Configs that a machine does not take.

use std::collections::BTreeSet;

use keelway_api::{
    hypervisor::Applied,
    machine::{Check, Container, MachineConfig, MachineState, Pod, STATS_SOCKET},
    name::{InstallationId, PodName},
};

use crate::layout::{FILES, is_plain_name, leads_downwards};

/// Why a machine takes nothing of a config. Each says what mends it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The machine has another owner.
    #[error(
        "the machine obeys installation {owner}, and these documents are of {config}: use that installation's documents, or take the machine over with `keelway hypervisor adopt --from {owner}`"
    )]
    AnotherInstallation {
        /// Who the machine obeys.
        owner: InstallationId,
        /// Whose config this is.
        config: InstallationId,
    },
    /// The machine holds a newer config.
    #[error(
        "stale documents: the machine holds config {}.{}, and these documents are of {term}.{generation}: use the newest documents",
        .applied.term, .applied.generation
    )]
    Stale {
        /// What the machine holds.
        applied: Applied,
        /// The config's term.
        term: u64,
        /// The config's generation.
        generation: u64,
    },
    /// The machine holds other content under the same number.
    #[error(
        "the machine holds config {term}.{generation} with other content: two writers share one set of documents; use the newest documents of one of them"
    )]
    Changed {
        /// The term of both.
        term: u64,
        /// The generation of both.
        generation: u64,
    },
    /// A kubelet runs its pods on the machine.
    #[error(
        "a kubelet uses the machine's container runtime ({pods} of its pods are there): use another machine, or another container runtime on it"
    )]
    UsedByKubelet {
        /// How many pods it has there.
        pods: usize,
    },
    /// The config asks for what no machine does.
    #[error("{pod}: {what}: this is a mistake of whoever wrote the config")]
    Invalid {
        /// Whose part of the config it is.
        pod: PodName,
        /// What is wrong.
        what: String,
    },
}

/// Checks that the machine may obey the config, and that the config is older than nothing it obeyed.
pub(crate) fn check_fence(config: &MachineConfig, state: &MachineState) -> Result<(), Refusal> {
    if state.kubelet_pods > 0 {
        return Err(Refusal::UsedByKubelet { pods: state.kubelet_pods });
    }
    check_owner(config, state.owner.as_ref())?;
    check_order(config, state.applied.as_ref())
}

/// Checks that nobody else owns the machine.
pub(crate) fn check_owner(config: &MachineConfig, owner: Option<&InstallationId>) -> Result<(), Refusal> {
    match owner.filter(|id| **id != config.installation) {
        Some(owner) => Err(Refusal::AnotherInstallation { owner: owner.clone(), config: config.installation.clone() }),
        None => Ok(()),
    }
}

/// Checks that a config comes after the one that was applied, or is the same.
pub(crate) fn check_order(config: &MachineConfig, applied: Option<&Applied>) -> Result<(), Refusal> {
    let Some(applied) = applied else {
        return Ok(());
    };
    let (term, generation) = (config.term, config.generation);
    match (term, generation).cmp(&(applied.term, applied.generation)) {
        std::cmp::Ordering::Less => Err(Refusal::Stale { applied: applied.clone(), term, generation }),
        std::cmp::Ordering::Equal if applied.digest != config.digest() => Err(Refusal::Changed { term, generation }),
        std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => Ok(()),
    }
}

/// Checks that each pod keeps to its own directory and has no privilege.
pub(crate) fn check_content(config: &MachineConfig) -> Result<(), Refusal> {
    for (name, pod) in &config.pods {
        check_pod(pod).map_err(|what| Refusal::Invalid { pod: name.clone(), what })?;
    }
    Ok(())
}

fn check_pod(pod: &Pod) -> Result<(), String> {
    if pod.user == 0 {
        return Err("a component never runs as root".to_owned());
    }
    check_files(pod)?;
    for (index, name) in pod.data.iter().enumerate() {
        if !is_plain_name(name) || name == FILES || pod.data[..index].contains(name) {
            return Err(format!("{name:?} cannot be a data directory"));
        }
    }
    check_servers(pod)?;
    let mut names = BTreeSet::new();
    for container in &pod.containers {
        if !is_plain_name(&container.name) || !names.insert(&container.name) {
            return Err(format!("{:?} cannot be a container", container.name));
        }
        check_mounts(pod, container)?;
        check_liveness(pod, container)?;
    }
    Ok(())
}

fn check_files(pod: &Pod) -> Result<(), String> {
    let mut paths: BTreeSet<&str> = BTreeSet::new();
    for file in &pod.files {
        if !leads_downwards(&file.path) || !paths.insert(&file.path) {
            return Err(format!("{:?} cannot be a file", file.path));
        }
    }
    let is_file_and_directory = |path: &&&str| path.match_indices('/').any(|(end, _)| paths.contains(&path[..end]));
    match paths.iter().find(is_file_and_directory) {
        Some(path) => Err(format!("{path:?} lies below a file")),
        None => Ok(()),
    }
}

/// A haproxy takes several commands on one line.
fn check_servers(pod: &Pod) -> Result<(), String> {
    let Some(servers) = &pod.servers else { return Ok(()) };
    let is_word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let is_name =
        |name: &str| name.split_once('/').is_some_and(|(backend, server)| is_word(backend) && is_word(server));
    if let Some(name) = servers.addresses.keys().find(|name| !is_name(name)) {
        return Err(format!("{name:?} is no BACKEND/SERVER"));
    }
    if servers.options.contains([';', '\\', '<']) || servers.options.contains(char::is_control) {
        return Err("the options of its servers are more than options".to_owned());
    }
    if !pod.data.iter().any(|name| STATS_SOCKET.starts_with(&format!("{name}/"))) {
        return Err(format!("it has servers, and no directory for {STATS_SOCKET}"));
    }
    Ok(())
}

fn check_mounts(pod: &Pod, container: &Container) -> Result<(), String> {
    for mount in &container.mounts {
        if mount.source != FILES && !pod.data.contains(&mount.source) {
            return Err(format!("{:?} is no directory of the pod", mount.source));
        }
        if !mount.target.starts_with('/') {
            return Err(format!("{:?} is no absolute path", mount.target));
        }
    }
    Ok(())
}

/// A check reads what the pod was given, and dials what the pod made.
fn check_liveness(pod: &Pod, container: &Container) -> Result<(), String> {
    let Some(liveness) = &container.liveness else {
        return Ok(());
    };
    if [liveness.period_seconds, liveness.timeout_seconds, liveness.failure_threshold].contains(&0) {
        return Err("a check without a period, a timeout or a threshold".to_owned());
    }
    match &liveness.check {
        Check::Https { authority, identity, .. } => {
            let identity = identity.iter().flat_map(|files| [&files.certificate, &files.key]);
            let given = |path: &&String| pod.files.iter().any(|file| file.path == **path);
            match std::iter::once(authority).chain(identity).find(|path| !given(path)) {
                Some(path) => Err(format!("{path:?} is no file of the pod")),
                None => Ok(()),
            }
        }
        Check::Http { address, .. } if !address.ip().is_loopback() => {
            Err(format!("{address} would be asked without TLS, and is not on loopback"))
        }
        Check::Http { .. } => Ok(()),
        Check::Socket { path, .. } => match path.split_once('/') {
            Some((directory, name)) if pod.data.iter().any(|data| data == directory) && is_plain_name(name) => Ok(()),
            Some(_) | None => Err(format!("{path:?} is in no directory that the pod writes to")),
        },
    }
}
