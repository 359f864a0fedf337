//! Paths on a machine, their owners, and the rules for relative paths.

pub use keelway_api::machine::FILES;
use keelway_api::{
    machine::{CgroupDriver, STATE_DIRECTORY},
    name::{ClusterId, InstallationId, PodName},
};

/// The directory of container logs, as an absolute path on the machine: `LOG_DIRECTORY/CLUSTER/COMPONENT/NAME-ATTEMPT.log`.
pub const LOG_DIRECTORY: &str = "/var/log/keelway";

/// The directory of an agent's identity, as an absolute path on the machine. An agent in a container has a directory in it for each installation.
pub const AGENT_DIRECTORY: &str = "/var/lib/keelway-agent";
/// The directory with the logs of agents in containers.
const AGENT_LOG_DIRECTORY: &str = "/var/log/keelway-agent";

/// Returns the directory with the identity and the socket of an agent in a container.
#[must_use]
pub fn agent_directory(installation: &InstallationId) -> String {
    format!("{AGENT_DIRECTORY}/{installation}")
}

/// Returns the directory with the logs of an agent in a container.
#[must_use]
pub fn agent_log_directory(installation: &InstallationId) -> String {
    format!("{AGENT_LOG_DIRECTORY}/{installation}")
}

/// The installation that the machine obeys. This and the following are names of the machine's own records, in [`STATE_DIRECTORY`].
pub const OWNER: &str = "owner";
/// The generation and the digest of the config that was applied last.
pub const APPLIED: &str = "applied";
/// The newest leader that a driver announced.
pub const LEADER: &str = "leader";
/// The config of an agent, which contains keys.
pub const CONFIG: &str = "config";
/// The part of the config that every release can read.
pub const TAKEN: &str = "taken";
/// The images that an agent fetched.
pub const FETCHED: &str = "fetched";
/// The events of a machine with an agent.
pub const EVENTS: &str = "events";

/// A directory on the machine, with its owner and mode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineDirectory {
    /// The path, relative to [`STATE_DIRECTORY`].
    pub path: String,
    /// The user id of the owner.
    pub user: u32,
    /// The group id.
    pub group: u32,
    /// The permission bits.
    pub mode: u32,
}

impl MachineDirectory {
    /// Returns the directory of a cluster's pods. All users can pass through it; only root can list it.
    #[must_use]
    pub fn of_cluster(cluster: &ClusterId) -> Self {
        Self { path: cluster.to_string(), user: 0, group: 0, mode: 0o711 }
    }

    /// Returns a pod's own directory, or one for its files. The pod can read it, and only root can change it, so that a component cannot replace its
    /// own files.
    #[must_use]
    pub fn of_files(path: String, user: u32) -> Self {
        Self { path, user: 0, group: user, mode: 0o750 }
    }

    /// Returns a directory that a pod can write. No other user can read it.
    #[must_use]
    pub fn of_data(path: String, user: u32) -> Self {
        Self { path, user, group: user, mode: 0o700 }
    }
}

/// The permission bits of every file.
pub const FILE_MODE: u32 = 0o600;

/// Returns a pod's directory, relative to [`STATE_DIRECTORY`].
#[must_use]
pub fn pod_directory(pod: &PodName) -> String {
    format!("{}/{}", pod.cluster, pod.component)
}

/// Returns the path of a pod's file, relative to [`STATE_DIRECTORY`].
#[must_use]
pub fn file_path(pod: &PodName, file: &str) -> String {
    format!("{}/{FILES}/{file}", pod_directory(pod))
}

/// Returns the directory of a pod's logs, as an absolute path on the machine.
#[must_use]
pub fn log_directory(pod: &PodName) -> String {
    format!("{LOG_DIRECTORY}/{}", pod_directory(pod))
}

/// Returns the name of a container's log in the pod's log directory.
#[must_use]
pub fn log_name(container: &str, attempt: u32) -> String {
    format!("{container}-{attempt}.log")
}

/// Returns whether a component is named after this container: `kube-apiserver-0` after `kube-apiserver`. Other containers accompany that one.
#[must_use]
pub fn is_named_after(pod: &PodName, container: &str) -> bool {
    pod.component.as_str().rsplit_once('-').is_some_and(|(role, _)| role == container)
}

/// Returns an absolute path on the machine, below a pod's directory.
#[must_use]
pub fn on_machine(pod: &PodName, path: &str) -> String {
    format!("{STATE_DIRECTORY}/{}/{path}", pod_directory(pod))
}

/// Returns the parent cgroup of a cluster's pods, in the notation of the machine's cgroup driver.
#[must_use]
pub fn cgroup_parent(cluster: &ClusterId, driver: CgroupDriver) -> String {
    match driver {
        CgroupDriver::Cgroupfs => format!("/keelway/{cluster}"),
        CgroupDriver::Systemd => format!("keelway-{cluster}.slice"),
    }
}

/// Returns whether a text is a relative path of plain names, which can only lead downwards.
#[must_use]
pub fn is_plain_relative_path(path: &str) -> bool {
    path.split('/').all(is_plain_name)
}

/// Returns whether a text is one name of a file or directory.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0'])
}

/// The sticky bit marks a top directory that Keelway created. `mkdir` sets it atomically, so that a crash cannot come between. A directory without it
/// is never removed.
pub const MADE_BY_US: u32 = 0o1000;

/// Returns whether permission bits mark a top directory as created by Keelway.
#[must_use]
pub fn is_ours(mode: u32) -> bool {
    mode & MADE_BY_US != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_lead_downwards() {
        for good in ["a", "a/b", ".hidden/..c"] {
            assert!(is_plain_relative_path(good), "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", ".", "a/../b", "a/./b", "a\0b"] {
            assert!(!is_plain_relative_path(bad), "{bad}");
        }
        assert!(!is_plain_relative_path(&"a".repeat(256)));
    }
}
