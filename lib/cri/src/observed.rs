//! The observed state of a runtime, its sandboxes, containers and images.

use std::{collections::BTreeMap, time::SystemTime};

/// The name and version of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// The runtime's name, such as `containerd`.
    pub runtime: String,
    /// The runtime's version.
    pub runtime_version: String,
    /// The version of CRI that the runtime speaks, such as `v1`.
    pub api_version: String,
}

/// The state of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Conditions by type. Pods on the host network need `RuntimeReady`.
    pub conditions: BTreeMap<String, Condition>,
    /// The program that manages cgroups.
    pub cgroup_driver: CriCgroupDriver,
}

impl RuntimeStatus {
    /// Returns whether pods on the machine's network can run.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.conditions.get("RuntimeReady").is_some_and(|condition| condition.status)
    }
}

/// A condition of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether the condition holds.
    pub status: bool,
    /// The reason, as one word.
    pub reason: String,
    /// The runtime's message.
    pub message: String,
}

/// The program that manages the machine's cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriCgroupDriver {
    /// The runtime writes the cgroup file system.
    Cgroupfs,
    /// The runtime uses systemd. Cgroup parents are slices.
    Systemd,
}

/// A pod sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriSandbox {
    /// The id that the runtime assigned.
    pub id: String,
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// The attempt at this pod, from 0.
    pub attempt: u32,
    /// Whether the sandbox runs.
    pub state: CriSandboxState,
    /// When the sandbox was created.
    pub created: SystemTime,
    /// The labels of its spec.
    pub labels: BTreeMap<String, String>,
    /// The annotations of its spec.
    pub annotations: BTreeMap<String, String>,
}

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriSandboxState {
    /// The sandbox runs, and containers can be created in it.
    Ready,
    /// The sandbox does not run, and cannot run again.
    NotReady,
}

/// A container, as lists return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriContainer {
    /// The id that the runtime assigned.
    pub id: String,
    /// The id of the container's sandbox.
    pub sandbox_id: String,
    /// The container's name in its pod.
    pub name: String,
    /// The attempt at this container, from 0.
    pub attempt: u32,
    /// The container's state.
    pub state: CriContainerState,
    /// When the container was created.
    pub created: SystemTime,
    /// The image, as the spec names it.
    pub image: String,
    /// The id of the image.
    pub image_ref: String,
    /// The labels of its spec.
    pub labels: BTreeMap<String, String>,
    /// The annotations of its spec.
    pub annotations: BTreeMap<String, String>,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriContainerState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Ended, or failed to start. It cannot run again.
    Exited,
    /// The runtime does not know the state. The container can be stopped and removed.
    Unknown,
}

/// The status of a container, with more detail than lists have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// The id that the runtime assigned.
    pub id: String,
    /// The container's name in its pod.
    pub name: String,
    /// The attempt at this container, from 0.
    pub attempt: u32,
    /// The container's state.
    pub state: CriContainerState,
    /// When the container was created.
    pub created: SystemTime,
    /// When the container was started. `None` if it was not.
    pub started: Option<SystemTime>,
    /// How the container ended. `None` if it did not.
    pub exit: Option<Exit>,
    /// A name of the image.
    pub image: String,
    /// The digest or id of the image.
    pub image_ref: String,
    /// The absolute path of the log on the machine. Empty if there is no log.
    pub log_path: String,
    /// The labels of its spec.
    pub labels: BTreeMap<String, String>,
    /// The annotations of its spec.
    pub annotations: BTreeMap<String, String>,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code. If a signal ended the container, 128 plus the signal's number.
    pub code: i32,
    /// The reason, as one word: `Completed`, `Error`, `OOMKilled`, `StartError`.
    pub reason: String,
    /// The runtime's message.
    pub message: String,
    /// When the container ended.
    pub finished: SystemTime,
}

/// An image on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriImage {
    /// The digest of the image's configuration.
    pub id: String,
    /// The names that have a tag.
    pub tags: Vec<String>,
    /// The names that have a digest.
    pub digests: Vec<String>,
    /// The size, in bytes.
    pub size: u64,
    /// Whether the runtime needs the image itself, such as the image of its sandboxes.
    pub pinned: bool,
}

/// The resources that a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// CPU time since the container started, in nanoseconds.
    pub cpu_nanoseconds: u64,
    /// The working set: memory that cannot be reclaimed at once, in bytes.
    pub memory_working_set: u64,
}

/// The result of a command in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    /// The standard output, at most 16 MiB.
    pub stdout: Vec<u8>,
    /// The standard error, at most 16 MiB.
    pub stderr: Vec<u8>,
    /// The exit code of the command.
    pub exit_code: i32,
}
