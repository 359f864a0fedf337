//! The desired state of sandboxes and containers.

use std::collections::BTreeMap;

/// A pod sandbox to run. It always shares the machine's network, and always has the runtime's default seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSpec {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid. Name, namespace, uid and attempt together are unique on a machine.
    pub uid: String,
    /// The attempt at this pod, from 0.
    pub attempt: u32,
    /// The host name in the pod. If empty, the host name of the machine.
    pub hostname: String,
    /// The directory on the machine for container logs. If empty, there are no logs.
    pub log_directory: String,
    /// The parent of the pod's cgroup. If empty, the runtime chooses.
    pub cgroup_parent: String,
    /// The user id of the sandbox's own process.
    pub user: u32,
    /// The group id of the sandbox's own process.
    pub group: u32,
    /// Labels, which lists can select by.
    pub labels: BTreeMap<String, String>,
    /// Annotations, which the runtime stores and returns.
    pub annotations: BTreeMap<String, String>,
}

/// A container to create. It cannot gain privileges, always has the runtime's default seccomp profile, and has a process namespace of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSpec {
    /// The container's name in its pod.
    pub name: String,
    /// The attempt at this container, from 0.
    pub attempt: u32,
    /// The full name or id of the image, which must be on the machine.
    pub image: String,
    /// The program and its first arguments. If empty, the entry point of the image.
    pub command: Vec<String>,
    /// Further arguments. If both `args` and `command` are empty, the arguments of the image.
    pub args: Vec<String>,
    /// Environment variables in addition to those of the image. Never put secrets here.
    pub env: BTreeMap<String, String>,
    /// The working directory. If empty, that of the image.
    pub working_dir: String,
    /// Files and directories of the machine to mount into the container.
    pub mounts: Vec<CriMount>,
    /// The user id to run as.
    pub user: u32,
    /// The group id to run as.
    pub group: u32,
    /// Whether the container can write to its root file system.
    pub writable_root: bool,
    /// Linux capabilities, such as `CHOWN`. Usually empty.
    pub capabilities: Vec<String>,
    /// CPU and memory limits.
    pub resources: CriResources,
    /// The path of the log, relative to the sandbox's log directory. If empty, there is no log.
    pub log_path: String,
    /// Labels, which lists can select by.
    pub labels: BTreeMap<String, String>,
    /// Annotations, which the runtime stores and returns.
    pub annotations: BTreeMap<String, String>,
}

/// A file or directory of the machine that is mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriMount {
    /// The path on the machine, which must exist.
    pub host_path: String,
    /// The path in the container.
    pub container_path: String,
    /// Whether the container can only read it.
    pub read_only: bool,
}

/// CPU and memory limits of a container. 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CriResources {
    /// The CPU weight relative to other containers. 1024 is the weight of one CPU.
    pub cpu_shares: i64,
    /// CPU time in each period, in microseconds.
    pub cpu_quota: i64,
    /// The length of a period, in microseconds.
    pub cpu_period: i64,
    /// The memory limit, in bytes.
    pub memory_limit: i64,
}
