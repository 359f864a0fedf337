//! What is asked of a runtime.

use std::collections::BTreeMap;

/// A pod sandbox to run. It always shares the machine's network, and always has the runtime's seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSpec {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid. Name, namespace, uid and attempt together are unique on a machine.
    pub uid: String,
    /// Which try at this pod it is, from 0.
    pub attempt: u32,
    /// The host name in the pod; empty for the machine's.
    pub hostname: String,
    /// The directory on the machine that container logs are in; empty for no logs.
    pub log_directory: String,
    /// The cgroup above the pod's; empty for the runtime's choice.
    pub cgroup_parent: String,
    /// The user id of the sandbox's own process.
    pub user: u32,
    /// The group id of the sandbox's own process.
    pub group: u32,
    /// Labels, by which sandboxes are found.
    pub labels: BTreeMap<String, String>,
    /// Annotations, which the runtime keeps and hands back.
    pub annotations: BTreeMap<String, String>,
}

/// A container to create. It never gains privileges, always has the runtime's seccomp profile, and has a process namespace of
/// its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSpec {
    /// The container's name in its pod.
    pub name: String,
    /// Which try at this container it is, from 0.
    pub attempt: u32,
    /// The image, by full name or id. It has to be on the machine.
    pub image: String,
    /// The program and its first arguments; empty for the image's entry point.
    pub command: Vec<String>,
    /// Further arguments; empty for the image's, where `command` is empty too.
    pub args: Vec<String>,
    /// The environment, beside the image's. Never a place for keys.
    pub env: BTreeMap<String, String>,
    /// The working directory; empty for the image's.
    pub working_dir: String,
    /// Files and directories of the machine that the container sees.
    pub mounts: Vec<CriMount>,
    /// The user id to run as.
    pub user: u32,
    /// The group id to run as.
    pub group: u32,
    /// Whether the root file system may be written to.
    pub writable_root: bool,
    /// The capabilities that it has, such as `CHOWN`; as a rule none.
    pub capabilities: Vec<String>,
    /// Limits.
    pub resources: CriResources,
    /// Where the log goes, relative to the sandbox's log directory; empty for no log.
    pub log_path: String,
    /// Labels, by which containers are found.
    pub labels: BTreeMap<String, String>,
    /// Annotations, which the runtime keeps and hands back.
    pub annotations: BTreeMap<String, String>,
}

/// A file or directory of the machine in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriMount {
    /// The path on the machine. It has to exist.
    pub host_path: String,
    /// The path in the container.
    pub container_path: String,
    /// Whether the container can only read it.
    pub read_only: bool,
}

/// Limits of a container. 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CriResources {
    /// The relative weight against other containers; 1024 is one processor's share.
    pub cpu_shares: i64,
    /// Processor time in each period, in microseconds.
    pub cpu_quota: i64,
    /// The length of a period, in microseconds.
    pub cpu_period: i64,
    /// Memory, in bytes.
    pub memory_limit: i64,
}
