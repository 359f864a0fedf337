//! Actions: single steps from what a machine holds towards its config.

use std::{fmt, net::SocketAddr};

use keelway_api::{
    hypervisor::Applied,
    machine::{Container, PodFile},
    name::{ClusterId, InstallationId, PodName},
    registry::RegistryCredentials,
};

use crate::layout::MachineDirectory;

/// A step on a machine. Each can be repeated, and contains everything that its execution needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Record the installation that the machine obeys. Comes before all other actions.
    WriteOwner(InstallationId),
    /// A step for one pod. The steps of a pod are in order; pods do not wait for each other.
    Pod(PodName, PodAction),
    /// Remove what a cluster without pods left behind.
    ForgetCluster(ClusterId),
    /// Record the config as applied, after all of its other actions.
    RecordApplied(Applied),
    /// Remove the machine's records, because the machine holds nothing any more.
    Leave,
}

/// An image that a pod needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedImage {
    /// The full name of the image.
    pub name: String,
    /// The credentials for the image's registry, if it needs any.
    pub credentials: Option<RegistryCredentials>,
}

impl From<String> for WantedImage {
    fn from(name: String) -> Self {
        Self { name, credentials: None }
    }
}

/// A step for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodAction {
    /// Fetch the image, unless it is on the machine.
    EnsureImage(WantedImage),
    /// Create directories, parents first, or correct their owner and mode.
    MakeDirectories(Vec<MachineDirectory>),
    /// Write the pod's mark into one of its data directories.
    MarkData {
        /// The directory, relative to [`keelway_api::machine::STATE_DIRECTORY`].
        path: String,
    },
    /// Copy a data directory of a pod that does not run. The copy appears under its name once it is complete.
    CopyData {
        /// The directory, relative to [`keelway_api::machine::STATE_DIRECTORY`].
        from: String,
        /// The copy, beside it.
        to: String,
    },
    /// Write a file atomically.
    WriteFile {
        /// The file to write.
        file: PodFile,
        /// The user id that owns the file. Its group has the same id.
        user: u32,
    },
    /// Remove a file or directory.
    RemovePath {
        /// The path, relative to [`keelway_api::machine::STATE_DIRECTORY`].
        path: String,
    },
    /// Stop a container's process, with time to drain.
    StopContainer {
        /// The id that the runtime assigned.
        id: String,
        /// The container's name in the pod.
        name: String,
        /// Seconds from SIGTERM to SIGKILL.
        grace_seconds: u32,
    },
    /// Remove a container that does not run.
    RemoveContainer {
        /// The id that the runtime assigned.
        id: String,
        /// The container's name in the pod.
        name: String,
    },
    /// Stop a sandbox and everything that runs in it.
    StopSandbox {
        /// The id that the runtime assigned.
        id: String,
    },
    /// Remove a sandbox with its containers.
    RemoveSandbox {
        /// The id that the runtime assigned.
        id: String,
    },
    /// Run a new sandbox. Later steps of this pod without a sandbox id refer to it.
    CreateSandbox(NewSandbox),
    /// Create a container. A later start of the same name without an id refers to it.
    CreateContainer(Box<NewContainer>),
    /// Start a container.
    StartContainer {
        /// The id that the runtime assigned. `None` for the container of this name that was just created.
        id: Option<String>,
        /// The container's name in the pod.
        name: String,
    },
    /// Change a server of the pod's haproxy, which keeps running.
    ChangeServer {
        /// `BACKEND/SERVER`.
        server: String,
        /// The change to make.
        change: ServerChange,
    },
    /// Remove the pod's logs, files and data.
    RemoveTree,
}

/// A change to a server of a running haproxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerChange {
    /// Add the server. It receives connections while its checks succeed.
    Add {
        /// The address of the server.
        address: SocketAddr,
        /// [`keelway_api::machine::HaproxyServers::options`].
        options: String,
    },
    /// Send new connections to the server again.
    Enable,
    /// Send no new connections to the server. Existing connections stay.
    Drain,
    /// Remove the server, which must have no connections.
    Remove,
}

/// A sandbox to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// The attempt: higher than all observed attempts of this pod.
    pub attempt: u32,
    /// [`keelway_api::machine::Pod::digest`], stored as an annotation of the sandbox.
    pub digest: String,
    /// The parent of the sandbox's cgroup.
    pub cgroup_parent: String,
    /// The user and group id of all processes in the sandbox.
    pub user: u32,
}

/// A container to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewContainer {
    /// The runtime's id of the sandbox. `None` for the sandbox that was just created.
    pub sandbox_id: Option<String>,
    /// The spec of the sandbox.
    pub sandbox: NewSandbox,
    /// The attempt: higher than all observed attempts of this name in this pod.
    pub attempt: u32,
    /// The container's definition. It runs as the user and group of its sandbox.
    pub container: Container,
}

impl Action {
    /// Returns the pod that the action is for. `None` for actions on the machine itself.
    #[must_use]
    pub fn pod(&self) -> Option<&PodName> {
        match self {
            Self::Pod(pod, _) => Some(pod),
            Self::WriteOwner(_) | Self::ForgetCluster(_) | Self::RecordApplied(_) | Self::Leave => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteOwner(installation) => {
                write!(f, "take the machine for installation {installation}")
            }
            Self::Pod(_, action) => action.fmt(f),
            Self::ForgetCluster(cluster) => write!(f, "remove the remains of cluster {cluster}"),
            Self::RecordApplied(applied) => {
                write!(f, "record config {}.{} as applied", applied.term, applied.generation)
            }
            Self::Leave => f.write_str("leave the machine as it was found"),
        }
    }
}

impl fmt::Display for PodAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnsureImage(image) => write!(f, "fetch image {}", image.name),
            Self::MakeDirectories(directories) => match directories.as_slice() {
                [one] => write!(f, "create directory {}", one.path),
                many => write!(f, "create {} directories", many.len()),
            },
            Self::MarkData { path } => write!(f, "mark {path} before the first start"),
            Self::CopyData { from, to } => write!(f, "copy {from} to {to}"),
            Self::WriteFile { file, .. } => write!(f, "write file {}", file.path),
            Self::RemovePath { path } => write!(f, "remove {path}"),
            Self::StopContainer { name, grace_seconds, .. } => {
                write!(f, "stop container {name} within {grace_seconds} s")
            }
            Self::RemoveContainer { name, .. } => write!(f, "remove container {name}"),
            Self::StopSandbox { id } => write!(f, "stop sandbox {}", short(id)),
            Self::RemoveSandbox { id } => write!(f, "remove sandbox {}", short(id)),
            Self::CreateSandbox(sandbox) => write!(f, "create sandbox {}", sandbox.attempt),
            Self::CreateContainer(new) => write!(f, "create container {}", new.container.name),
            Self::StartContainer { name, .. } => write!(f, "start container {name}"),
            Self::ChangeServer { server, change } => match change {
                ServerChange::Add { address, .. } => write!(f, "add server {server} at {address}"),
                ServerChange::Enable => write!(f, "enable server {server}"),
                ServerChange::Drain => write!(f, "drain server {server}"),
                ServerChange::Remove => write!(f, "remove server {server}"),
            },
            Self::RemoveTree => f.write_str("remove files, data and logs"),
        }
    }
}

/// Returns the part of an id that messages show.
fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_one_line_without_the_content_of_files() {
        let pod = PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() };
        let start = Action::Pod(pod.clone(), PodAction::StartContainer { id: None, name: "etcd".to_owned() });
        assert_eq!(start.to_string(), "start container etcd");
        assert_eq!(start.pod(), Some(&pod));
        assert_eq!(Action::Leave.pod(), None);

        let write = Action::Pod(
            pod,
            PodAction::WriteFile {
                file: PodFile {
                    path: "pki/ca.key".to_owned(),
                    content: b"secret".to_vec(),
                    on_change: keelway_api::machine::OnChange::Restart,
                },
                user: 1000,
            },
        );
        assert_eq!(write.to_string(), "write file pki/ca.key");
        assert!(!format!("{write:?}").contains("115"), "a byte of the content shows");
    }
}
