//! What is seen on a machine.

use std::{collections::BTreeMap, time::SystemTime};

/// Who answers at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// The runtime's name, such as `containerd`.
    pub runtime: String,
    /// The runtime's version.
    pub runtime_version: String,
    /// The version of CRI it speaks, such as `v1`.
    pub api_version: String,
}

/// How the runtime is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Conditions by type. `RuntimeReady` is the one that host-network pods need.
    pub conditions: BTreeMap<String, Condition>,
    /// Who manages cgroups.
    pub cgroup_driver: CriCgroupDriver,
}

impl RuntimeStatus {
    /// Whether pods on the machine's network can run.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.conditions.get("RuntimeReady").is_some_and(|condition| condition.status)
    }
}

/// One condition of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether it holds.
    pub status: bool,
    /// One word that says why.
    pub reason: String,
    /// The runtime's words.
    pub message: String,
}

/// Who manages the machine's cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriCgroupDriver {
    /// The runtime writes the cgroup file system.
    Cgroupfs,
    /// The runtime asks systemd; cgroup parents are slices.
    Systemd,
}

/// A pod sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriSandbox {
    /// The runtime's id.
    pub id: String,
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// Which try at this pod it is.
    pub attempt: u32,
    /// Whether it runs.
    pub state: CriSandboxState,
    /// When it was made.
    pub created: SystemTime,
    /// Labels as asked for.
    pub labels: BTreeMap<String, String>,
    /// Annotations as asked for.
    pub annotations: BTreeMap<String, String>,
}

/// Whether a sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriSandboxState {
    /// It runs, and containers can be created in it.
    Ready,
    /// It does not run and never will again.
    NotReady,
}

/// A container, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriContainer {
    /// The runtime's id.
    pub id: String,
    /// The id of its sandbox.
    pub sandbox_id: String,
    /// Its name in the pod.
    pub name: String,
    /// Which try at this container it is.
    pub attempt: u32,
    /// What it does.
    pub state: CriContainerState,
    /// When it was made.
    pub created: SystemTime,
    /// The image as asked for.
    pub image: String,
    /// The image's id.
    pub image_ref: String,
    /// Labels as asked for.
    pub labels: BTreeMap<String, String>,
    /// Annotations as asked for.
    pub annotations: BTreeMap<String, String>,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriContainerState {
    /// Made, not yet started.
    Created,
    /// Runs.
    Running,
    /// Ran, or failed to start. It never runs again.
    Exited,
    /// The runtime lost track of it. It can be stopped and removed.
    Unknown,
}

/// A container, looked at closely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// The runtime's id.
    pub id: String,
    /// Its name in the pod.
    pub name: String,
    /// Which try at this container it is.
    pub attempt: u32,
    /// What it does.
    pub state: CriContainerState,
    /// When it was made.
    pub created: SystemTime,
    /// When it was started, if it was.
    pub started: Option<SystemTime>,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
    /// A name of its image.
    pub image: String,
    /// The image's digest or id.
    pub image_ref: String,
    /// The whole path of its log on the machine; empty for none.
    pub log_path: String,
    /// Labels as asked for.
    pub labels: BTreeMap<String, String>,
    /// Annotations as asked for.
    pub annotations: BTreeMap<String, String>,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 and the signal's number where a signal ended it.
    pub code: i32,
    /// One word: `Completed`, `Error`, `OOMKilled`, `StartError`.
    pub reason: String,
    /// The runtime's words.
    pub message: String,
    /// When it ended.
    pub finished: SystemTime,
}

/// An image on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriImage {
    /// The digest of its configuration.
    pub id: String,
    /// Names with a tag.
    pub tags: Vec<String>,
    /// Names with a digest.
    pub digests: Vec<String>,
    /// Its size, in bytes.
    pub size: u64,
    /// Whether the runtime itself needs it, such as the image of its sandboxes.
    pub pinned: bool,
}

/// What a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Processor time since its start, in nanoseconds.
    pub cpu_nanoseconds: u64,
    /// Memory that cannot be taken away from it at once, in bytes.
    pub memory_working_set: u64,
}

/// What a command in a container said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its standard output, at most 16 MiB.
    pub stdout: Vec<u8>,
    /// Its standard error, at most 16 MiB.
    pub stderr: Vec<u8>,
    /// Its exit code.
    pub exit_code: i32,
}
