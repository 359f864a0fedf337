//! One step towards what a machine should hold.

use std::{fmt, net::SocketAddr};

use keelway_api::{
    hypervisor::Applied,
    machine::{Container, PodFile},
    name::{ClusterId, InstallationId, PodName},
    registry::RegistryCredentials,
};

use crate::layout::MachineDirectory;

/// Something to do on a machine. Each can be repeated, and carries all that its execution needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Record who the machine obeys, before anything else.
    WriteOwner(InstallationId),
    /// Do something for one pod. Those of a pod are in order; pods do not wait for each other.
    Pod(PodName, PodAction),
    /// Remove what a cluster without pods left behind.
    ForgetCluster(ClusterId),
    /// Record the config, after everything else of it.
    RecordApplied(Applied),
    /// Remove the machine's records, as nothing is left to obey for.
    Leave,
}

/// An image that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedImage {
    /// Its full name.
    pub name: String,
    /// Who pulls it, where its registry wants to know.
    pub credentials: Option<RegistryCredentials>,
}

impl From<String> for WantedImage {
    fn from(name: String) -> Self {
        Self { name, credentials: None }
    }
}

/// Something to do for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodAction {
    /// Bring the image to the machine, unless it is there.
    EnsureImage(WantedImage),
    /// Make directories, each after the one that it is in, or give them the right owner and mode.
    MakeDirectories(Vec<MachineDirectory>),
    /// Put the pod's mark into one of its data directories.
    MarkData {
        /// The directory, relative to [`keelway_api::machine::STATE_DIRECTORY`].
        path: String,
    },
    /// Put a file in its place in one step.
    WriteFile {
        /// The file.
        file: PodFile,
        /// Its owner and group.
        user: u32,
    },
    /// Remove a file or directory.
    RemovePath {
        /// Relative to [`keelway_api::machine::STATE_DIRECTORY`].
        path: String,
    },
    /// End a container's process, with time to drain.
    StopContainer {
        /// The runtime's id.
        id: String,
        /// Its name in the pod.
        name: String,
        /// Seconds from SIGTERM to SIGKILL.
        grace_seconds: u32,
    },
    /// Remove a container that does not run.
    RemoveContainer {
        /// The runtime's id.
        id: String,
        /// Its name in the pod.
        name: String,
    },
    /// Stop a sandbox and whatever runs in it.
    StopSandbox {
        /// The runtime's id.
        id: String,
    },
    /// Remove a sandbox with its containers.
    RemoveSandbox {
        /// The runtime's id.
        id: String,
    },
    /// Run a new sandbox; later steps of this pod that name none are about it.
    CreateSandbox(NewSandbox),
    /// Make a container; a later start of that name without an id is about it.
    CreateContainer(Box<NewContainer>),
    /// Start a container.
    StartContainer {
        /// The runtime's id. `None`: the one of this name that was just made.
        id: Option<String>,
        /// Its name in the pod.
        name: String,
    },
    /// Tell the pod's haproxy, which goes on running, about one of its servers.
    ChangeServer {
        /// `BACKEND/SERVER`.
        server: String,
        /// What to tell.
        change: ServerChange,
    },
    /// Remove the pod's logs, files and data.
    RemoveTree,
}

/// What a haproxy is told about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerChange {
    /// Pass connections on to this one, too, while its checks succeed.
    Add {
        /// Where it is.
        address: SocketAddr,
        /// [`keelway_api::machine::Servers::options`].
        options: String,
    },
    /// Pass connections on to it again.
    Enable,
    /// Pass no more on to it; those that are there stay.
    Drain,
    /// Forget it. It has no connections.
    Remove,
}

/// A sandbox to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// Above all attempts of this pod that were seen.
    pub attempt: u32,
    /// [`keelway_api::machine::Pod::digest`], kept with it.
    pub digest: String,
    /// The cgroup above it.
    pub cgroup_parent: String,
    /// The user and group of all its processes.
    pub user: u32,
}

/// A container to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewContainer {
    /// The runtime's id of its sandbox. `None`: the one that was just made.
    pub sandbox_id: Option<String>,
    /// What its sandbox was made from.
    pub sandbox: NewSandbox,
    /// Above all attempts of this name in this pod that were seen.
    pub attempt: u32,
    /// What it is. It runs as the user and group of its sandbox.
    pub container: Container,
}

impl Action {
    /// The pod that this is for.
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
            Self::ForgetCluster(cluster) => write!(f, "remove what is left of cluster {cluster}"),
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
                [one] => write!(f, "make directory {}", one.path),
                many => write!(f, "make {} directories", many.len()),
            },
            Self::MarkData { path } => write!(f, "mark {path} before the first start"),
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

/// As much of an id as people read.
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
