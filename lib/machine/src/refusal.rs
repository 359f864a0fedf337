//! Configs that a machine refuses.

use std::{collections::BTreeSet, net::SocketAddr};

use keelway_api::{
    hypervisor::Applied,
    machine::{Container, ContainerCheck, MachineConfig, MachineState, Pod, SERVING_CERTIFICATE, STATS_SOCKET},
    name::{InstallationId, PodName},
};

use crate::layout::{FILES, is_plain_name, is_plain_relative_path};

/// The reason for which a machine refuses a config. Each message states what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigRefusal {
    /// The machine obeys another installation.
    #[error(
        "the machine obeys installation {owner}, but these documents belong to {config}: use the documents of {owner}, or adopt \
         the machine with `keelway hypervisor adopt --from {owner}`"
    )]
    AnotherInstallation {
        /// The installation that the machine obeys.
        owner: InstallationId,
        /// The installation of the config.
        config: InstallationId,
    },
    /// The machine holds a newer config.
    #[error(
        "stale documents: the machine holds config {}.{}, but these documents record {term}.{generation}: use the newest documents",
        .applied.term, .applied.generation
    )]
    Stale {
        /// The config that the machine holds.
        applied: Applied,
        /// The term of the config.
        term: u64,
        /// The generation of the config.
        generation: u64,
    },
    /// The machine holds other content under the same number.
    #[error(
        "the machine holds config {term}.{generation} with different content: two drivers use copies of the same documents; use \
         the newest documents of one of them"
    )]
    Changed {
        /// The term of both configs.
        term: u64,
        /// The generation of both configs.
        generation: u64,
    },
    /// The machine has seen a later leader.
    #[error(
        "the config comes from the driver of term {term}, but the machine obeys the driver of term {leader}: another manager \
         drives this machine, and this one changes nothing on it; stop one of the two"
    )]
    Superseded {
        /// The term of the config.
        term: u64,
        /// The term of the newest leader.
        leader: u64,
    },
    /// A kubelet runs pods on the machine.
    #[error(
        "a kubelet uses the machine's container runtime ({pods} of its pods are there): use another machine, or another container runtime on it"
    )]
    UsedByKubelet {
        /// The number of the kubelet's pods.
        pods: usize,
    },
    /// The config violates a rule that holds for every machine.
    #[error("{pod}: {what}: this is a fault of the driver that wrote the config")]
    Invalid {
        /// The pod whose definition is invalid.
        pod: PodName,
        /// What is invalid.
        what: InvalidPod,
    },
}

/// The rule that the definition of a pod violates.
#[expect(missing_docs, reason = "the messages state the rules")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPod {
    #[error("a component must not run as root")]
    Root,
    #[error("{0:?} is not a valid data directory")]
    DataDirectory(String),
    #[error("{0:?} is not a valid container name")]
    ContainerName(String),
    #[error("{0:?} is not a valid file path")]
    FilePath(String),
    #[error("{0:?} is below a file")]
    BelowFile(String),
    #[error("{0:?} is not BACKEND/SERVER")]
    ServerName(String),
    #[error("the options of its servers contain other commands")]
    ServerOptions,
    #[error("it has servers, but no directory for {STATS_SOCKET}")]
    NoServerSocket,
    #[error("{0:?} is not a directory of the pod")]
    MountSource(String),
    #[error("{0:?} is not an absolute path")]
    MountTarget(String),
    #[error("a check must have a period, a timeout and a threshold")]
    CheckTimes,
    #[error("{0:?} is not a file of the pod")]
    CheckFile(String),
    #[error("{0} would be queried without TLS, but is not on loopback")]
    CheckAddress(SocketAddr),
    #[error("{0:?} is not in a data directory of the pod")]
    CheckSocket(String),
}

/// Checks that the machine may obey the config, and that the machine has not obeyed a later one.
pub(crate) fn check_fence(
    (config, fence): (&MachineConfig, &Applied),
    state: &MachineState,
) -> Result<(), ConfigRefusal> {
    if state.kubelet_pods > 0 {
        return Err(ConfigRefusal::UsedByKubelet { pods: state.kubelet_pods });
    }
    check_owner(&config.installation, state.owner.as_ref())?;
    check_order(fence, state.applied.as_ref())?;
    check_term(config, state.term, state.applied.as_ref())
}

/// Checks that the machine obeys this installation, or none.
pub fn check_owner(of: &InstallationId, owner: Option<&InstallationId>) -> Result<(), ConfigRefusal> {
    match owner.filter(|owner| *owner != of) {
        Some(owner) => Err(ConfigRefusal::AnotherInstallation { owner: owner.clone(), config: of.clone() }),
        None => Ok(()),
    }
}

/// Checks that a config comes after the applied one, or is the same.
pub fn check_order(fence: &Applied, applied: Option<&Applied>) -> Result<(), ConfigRefusal> {
    let Some(applied) = applied else {
        return Ok(());
    };
    let (term, generation) = (fence.term, fence.generation);
    match (term, generation).cmp(&(applied.term, applied.generation)) {
        std::cmp::Ordering::Less => Err(ConfigRefusal::Stale { applied: applied.clone(), term, generation }),
        std::cmp::Ordering::Equal if applied.digest != fence.digest => Err(ConfigRefusal::Changed { term, generation }),
        std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => Ok(()),
    }
}

/// Checks that a config is not from an earlier leader than the newest. The applied config may be repeated, because that changes nothing.
pub fn check_term(config: &MachineConfig, newest: u64, applied: Option<&Applied>) -> Result<(), ConfigRefusal> {
    let number = (config.term, config.generation);
    let is_applied = applied.is_some_and(|applied| (applied.term, applied.generation) == number);
    if config.term < newest && !is_applied {
        return Err(ConfigRefusal::Superseded { term: config.term, leader: newest });
    }
    Ok(())
}

/// Checks that each pod stays in its own directory and has no privileges.
pub fn check_content(config: &MachineConfig) -> Result<(), ConfigRefusal> {
    for (name, pod) in &config.pods {
        check_pod(pod).map_err(|what| ConfigRefusal::Invalid { pod: name.clone(), what })?;
    }
    Ok(())
}

fn check_pod(pod: &Pod) -> Result<(), InvalidPod> {
    if pod.user == 0 {
        return Err(InvalidPod::Root);
    }
    check_files(pod)?;
    for (index, name) in pod.data.iter().enumerate() {
        if !is_plain_name(name) || name == FILES || pod.data[..index].contains(name) {
            return Err(InvalidPod::DataDirectory(name.clone()));
        }
    }
    check_servers(pod)?;
    let mut names = BTreeSet::new();
    for container in &pod.containers {
        if !is_plain_name(&container.name) || !names.insert(&container.name) {
            return Err(InvalidPod::ContainerName(container.name.clone()));
        }
        check_mounts(pod, container)?;
        check_liveness(pod, container)?;
    }
    Ok(())
}

fn check_files(pod: &Pod) -> Result<(), InvalidPod> {
    let mut paths: BTreeSet<&str> = BTreeSet::new();
    for file in &pod.files {
        if !is_plain_relative_path(&file.path) || !paths.insert(&file.path) {
            return Err(InvalidPod::FilePath(file.path.clone()));
        }
    }
    let is_file_and_directory = |path: &&&str| path.match_indices('/').any(|(end, _)| paths.contains(&path[..end]));
    match paths.iter().find(is_file_and_directory) {
        Some(path) => Err(InvalidPod::BelowFile((*path).to_owned())),
        None => Ok(()),
    }
}

/// Checks names and options, because haproxy accepts several commands on one line.
fn check_servers(pod: &Pod) -> Result<(), InvalidPod> {
    let Some(servers) = &pod.servers else { return Ok(()) };
    let is_word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let is_name =
        |name: &str| name.split_once('/').is_some_and(|(backend, server)| is_word(backend) && is_word(server));
    if let Some(name) = servers.addresses.keys().find(|name| !is_name(name)) {
        return Err(InvalidPod::ServerName(name.clone()));
    }
    if servers.options.contains([';', '\\', '<']) || servers.options.contains(char::is_control) {
        return Err(InvalidPod::ServerOptions);
    }
    if !pod.data.iter().any(|name| STATS_SOCKET.starts_with(&format!("{name}/"))) {
        return Err(InvalidPod::NoServerSocket);
    }
    Ok(())
}

fn check_mounts(pod: &Pod, container: &Container) -> Result<(), InvalidPod> {
    for mount in &container.mounts {
        if mount.source != FILES && !pod.data.contains(&mount.source) {
            return Err(InvalidPod::MountSource(mount.source.clone()));
        }
        if !mount.target.starts_with('/') {
            return Err(InvalidPod::MountTarget(mount.target.clone()));
        }
    }
    Ok(())
}

/// Checks that a probe reads only files of the pod and dials only what the pod serves.
fn check_liveness(pod: &Pod, container: &Container) -> Result<(), InvalidPod> {
    let Some(liveness) = &container.liveness else {
        return Ok(());
    };
    if [liveness.period_seconds, liveness.timeout_seconds, liveness.failure_threshold].contains(&0) {
        return Err(InvalidPod::CheckTimes);
    }
    match &liveness.check {
        ContainerCheck::Https { authority, identity, .. } => {
            let identity = identity.iter().flat_map(|files| [files.certificate.as_str(), &files.key]);
            let given = |path: &&str| pod.files.iter().any(|file| file.path == **path);
            match [SERVING_CERTIFICATE, authority].into_iter().chain(identity).find(|path| !given(path)) {
                Some(path) => Err(InvalidPod::CheckFile(path.to_owned())),
                None => Ok(()),
            }
        }
        ContainerCheck::Http { address, .. } if !address.ip().is_loopback() => Err(InvalidPod::CheckAddress(*address)),
        ContainerCheck::Http { .. } => Ok(()),
        ContainerCheck::Socket { path, .. } => match path.split_once('/') {
            Some((directory, name)) if pod.data.iter().any(|data| data == directory) && is_plain_name(name) => Ok(()),
            Some(_) | None => Err(InvalidPod::CheckSocket(path.clone())),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::converge::applied_by;

    /// The state that an agent keeps for a machine.
    #[derive(Default)]
    struct Machine {
        newest: u64,
        applied: Option<Applied>,
    }

    /// Messages of drivers, in any order of arrival.
    #[derive(Debug, Clone)]
    enum Said {
        Leads(u64),
        Holds { term: u64, generation: u64, users: u32 },
    }

    impl Machine {
        fn takes(&mut self, config: &MachineConfig) -> Result<(), ConfigRefusal> {
            check_order(&applied_by(config), self.applied.as_ref())?;
            check_term(config, self.newest, self.applied.as_ref())?;
            self.applied = Some(applied_by(config));
            Ok(())
        }
    }

    fn config(term: u64, generation: u64, user: u32) -> MachineConfig {
        let pod = Pod {
            user,
            files: Vec::new(),
            data: Vec::new(),
            containers: Vec::new(),
            pause_image: "pause".to_owned(),
            servers: None,
            start: keelway_api::machine::Start::Always,
            hold: false,
            registries: BTreeMap::new(),
            prefetch: BTreeSet::new(),
        };
        let name = PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() };
        let installation = "00000000000000ff".parse().unwrap();
        MachineConfig {
            format: keelway_api::machine::ConfigFormat::NEWEST,
            installation,
            term,
            generation,
            pods: [(name, pod)].into(),
            others: BTreeSet::new(),
            removals: std::collections::BTreeMap::new(),
        }
    }

    fn said() -> impl Strategy<Value = Said> {
        prop_oneof![
            (1..4_u64).prop_map(Said::Leads),
            (1..4_u64, 1..5_u64, 1..4_u32).prop_map(|(term, generation, users)| Said::Holds {
                term,
                generation,
                users
            }),
        ]
    }

    proptest! {
        /// Once the machine has seen a leader, no earlier leader changes anything, however late its messages arrive.
        #[test]
        fn an_earlier_leader_changes_nothing(all in proptest::collection::vec(said(), 0..40)) {
            let mut machine = Machine::default();
            for said in all {
                let before = machine.applied.clone();
                match said {
                    Said::Leads(term) => machine.newest = machine.newest.max(term),
                    Said::Holds { term, generation, users } => {
                        let config = config(term, generation, users);
                        let taken = machine.takes(&config);
                        if term < machine.newest {
                            prop_assert_eq!(&machine.applied, &before);
                            prop_assert!(taken.is_err() || before == Some(applied_by(&config)));
                        }
                    }
                }
                let place = |applied: &Option<Applied>| applied.as_ref().map(|one| (one.term, one.generation));
                prop_assert!(place(&machine.applied) >= place(&before));
            }
        }
    }

    #[test]
    fn an_earlier_leader_may_repeat_the_config_in_effect() {
        let mut machine = Machine::default();
        machine.takes(&config(1, 4, 1)).unwrap();
        machine.newest = 2;
        machine.takes(&config(1, 4, 1)).unwrap();
        assert_eq!(machine.takes(&config(1, 5, 2)), Err(ConfigRefusal::Superseded { term: 1, leader: 2 }));
        machine.takes(&config(2, 5, 2)).unwrap();
    }
}
