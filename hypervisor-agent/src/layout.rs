//! Where things are on a machine, who owns them, and what a path below may be.

pub use keelway_api::machine::FILES;
use keelway_api::{
    machine::{CgroupDriver, STATE_DIRECTORY},
    name::{ClusterId, PodName},
};
use serde::{Deserialize, Serialize};

/// Where container logs are, as an absolute path on the machine: `LOG_DIRECTORY/CLUSTER/COMPONENT/NAME-ATTEMPT.log`.
pub const LOG_DIRECTORY: &str = "/var/log/keelway";

/// The names of the machine's own records, in [`STATE_DIRECTORY`].
pub(crate) const OWNER: &str = "owner";
pub(crate) const APPLIED: &str = "applied";
/// The newest leader that an agent was told of.
pub(crate) const LEADER: &str = "leader";
/// The config that an agent keeps, with keys in it.
pub(crate) const CONFIG: &str = "config";
/// What every release can read of that config.
pub(crate) const TAKEN: &str = "taken";
/// Which images an agent fetched.
pub(crate) const FETCHED: &str = "fetched";
/// What happened on a machine with an agent.
pub(crate) const EVENTS: &str = "events";

/// A directory that belongs on the machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MachineDirectory {
    /// Relative to [`STATE_DIRECTORY`].
    pub path: String,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Permission bits.
    pub mode: u32,
}

impl MachineDirectory {
    /// Holds the pods of a cluster: passed through by all, listed by root.
    #[must_use]
    pub fn of_cluster(cluster: &ClusterId) -> Self {
        Self { path: cluster.to_string(), user: 0, group: 0, mode: 0o711 }
    }

    /// A pod's own directory, or one that holds its files: read by the pod, changed by root alone, so that a component
    /// cannot replace what it was given.
    #[must_use]
    pub fn of_files(path: String, user: u32) -> Self {
        Self { path, user: 0, group: user, mode: 0o750 }
    }

    /// A directory that a pod writes to, and nobody else sees into.
    #[must_use]
    pub fn of_data(path: String, user: u32) -> Self {
        Self { path, user, group: user, mode: 0o700 }
    }
}

/// The permission bits of every file.
pub(crate) const FILE_MODE: u32 = 0o600;

/// A pod's directory, relative to [`STATE_DIRECTORY`].
#[must_use]
pub fn pod_directory(pod: &PodName) -> String {
    format!("{}/{}", pod.cluster, pod.component)
}

/// A file of a pod, relative to [`STATE_DIRECTORY`].
#[must_use]
pub fn file_path(pod: &PodName, file: &str) -> String {
    format!("{}/{FILES}/{file}", pod_directory(pod))
}

/// Where a pod's logs are, as an absolute path on the machine.
#[must_use]
pub fn log_directory(pod: &PodName) -> String {
    format!("{LOG_DIRECTORY}/{}", pod_directory(pod))
}

/// The log of a container, in the pod's log directory.
#[must_use]
pub fn log_name(container: &str, attempt: u32) -> String {
    format!("{container}-{attempt}.log")
}

/// Whether a component has its name from this container: `kube-apiserver-0` from `kube-apiserver`. Others are beside that one.
#[must_use]
pub fn is_named_after(pod: &PodName, container: &str) -> bool {
    pod.component.as_str().rsplit_once('-').is_some_and(|(role, _)| role == container)
}

/// A path on the machine, below a pod's directory.
#[must_use]
pub fn on_machine(pod: &PodName, path: &str) -> String {
    format!("{STATE_DIRECTORY}/{}/{path}", pod_directory(pod))
}

/// The cgroup above the pods of a cluster, in the words of the machine's driver.
#[must_use]
pub fn cgroup_parent(cluster: &ClusterId, driver: CgroupDriver) -> String {
    match driver {
        CgroupDriver::Cgroupfs => format!("/keelway/{cluster}"),
        CgroupDriver::Systemd => format!("keelway-{cluster}.slice"),
    }
}

/// Whether a text is a relative path of plain names: it leads downwards only.
#[must_use]
pub fn is_plain_relative_path(path: &str) -> bool {
    path.split('/').all(is_plain_name)
}

/// Whether a text is one name of a file or directory.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0'])
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
