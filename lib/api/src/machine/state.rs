//! What a machine reports of itself.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::machine::{Container, PodDigests, STATE_DIRECTORY, STOP_LABEL};
use crate::{
    Time,
    image_override::reported_name,
    machine::{
        SMALLEST_QUOTA,
        amount::{Amount, Disk},
        config::{Applied, COPY, Start, is_fetch_failure},
        format::FormatRange,
    },
    name::{ClusterId, InstallationId, PodName},
    quantity::Memory,
};

/// The observed state of a machine at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineState {
    /// The container runtime behind the CRI endpoint.
    pub runtime: RuntimeFacts,
    /// The installation that the machine obeys, from its owner file. `None` if it obeys none yet.
    pub owner: Option<InstallationId>,
    /// The last config that the machine applied, from its own record.
    pub applied: Option<Applied>,
    /// The latest term that the machine knows. It refuses configs of earlier terms. 0 if it knows none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub term: u64,
    /// Keelway's sandboxes, newest first.
    pub sandboxes: Vec<SandboxState>,
    /// The containers of Keelway's sandboxes, newest first.
    pub containers: Vec<ContainerState>,
    /// Keelway's files and directories, by path relative to [`STATE_DIRECTORY`], which is itself the empty path. Contents of data
    /// directories are not included.
    pub files: BTreeMap<String, FileState>,
    /// The data directories of Keelway's pods, by path relative to [`STATE_DIRECTORY`].
    #[serde(default)]
    pub data: BTreeMap<String, DataState>,
    /// The references of the images on the machine.
    pub images: BTreeSet<String>,
    /// The TCP and UDP ports.
    pub ports: PortFacts,
    /// The addresses of the machine's interfaces. It is empty if the machine does not report them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub addresses: BTreeSet<IpAddr>,
    /// The servers of each haproxy that responds, by `CLUSTER/COMPONENT` and `BACKEND/SERVER`.
    #[serde(default, with = "by_text", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, BTreeMap<String, ServerState>>")]
    pub servers: BTreeMap<PodName, BTreeMap<String, ServerState>>,
    /// The capacity of the machine. `None` if it does not report it; Keelway then assumes that it is sufficient.
    #[serde(default)]
    pub capacity: Option<Amount>,
    /// The number of a kubelet's pods on its runtime.
    #[serde(default)]
    pub kubelet_pods: usize,
    /// Whether less than [`DISK_RESERVE`] is left below [`STATE_DIRECTORY`].
    #[serde(default)]
    pub disk_pressure: bool,
    /// The file system of [`STATE_DIRECTORY`]. `None` if the machine does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// The system of the machine. `None` if the machine does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<SystemFacts>,
    /// The sizes that components report.
    #[serde(default, with = "by_text", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Figures>")]
    pub figures: BTreeMap<PodName, Figures>,
    /// The ids of containers that passed their last [`Container::liveness`] check by the machine's agent. Without an agent, it is
    /// empty.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub healthy: BTreeSet<String>,
    /// The current failures of the machine's agent, as text for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// The certificate of the machine's agent on a network. `None` if the agent is not enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<AgentIdentity>,
    /// The id that the machine's agent created when it started. If two documents have the same one, they describe one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The config formats that the machine supports.
    #[serde(default, skip_serializing_if = "FormatRange::is_of_v0_1_0")]
    pub formats: FormatRange,
    /// Whether the machine can make the data of an etcd member from a snapshot.
    #[serde(default, skip_serializing_if = "is_false")]
    pub restores: bool,
    /// Whether the machine fetches images ahead, which [`Pod::prefetch`](super::Pod::prefetch) names.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prefetches: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The sizes of a component.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Figures {
    /// The size of an etcd member's database file in bytes. It shrinks only when the database is defragmented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_bytes: Option<u64>,
    /// The number of WireGuard peers of a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<u64>,
    /// Whether an etcd member reports the alarm `NOSPACE`: etcd rejects writes until the alarm is disarmed. Machines without an agent
    /// do not check it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_space: bool,
}

/// How much of its quota the database of an etcd member uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DatabaseRoom {
    /// Less than 75 %.
    Enough,
    /// 75 to 80 %. A database that was near its quota still counts as near.
    Less,
    /// 80 % or more. The alert `KeelwayEtcdQuotaLow` fires too.
    NearQuota,
    /// 90 % or more. The database of the only member of a store is defragmented from here on.
    AlmostFull,
    /// etcd rejects writes.
    NoSpace,
}

impl Figures {
    /// Whether two observations of a component are about equal: the sizes of its database differ by less than a twentieth of the larger one, or of
    /// the smallest quota.
    #[must_use]
    pub fn are_about_equal(one: &Self, other: &Self) -> bool {
        let databases = match (one.database_bytes, other.database_bytes) {
            (Some(one), Some(other)) => one.abs_diff(other) < one.max(other).max(SMALLEST_QUOTA.bytes()) / 20,
            (one, other) => one == other,
        };
        databases && one.peers == other.peers && one.no_space == other.no_space
    }

    /// `None`: the component is no etcd member, or does not report its size.
    #[must_use]
    pub fn database_room(&self, quota: Memory) -> Option<DatabaseRoom> {
        if self.no_space {
            return Some(DatabaseRoom::NoSpace);
        }
        let (bytes, quota) = (u128::from(self.database_bytes?), u128::from(quota.bytes()));
        Some(match bytes * 100 {
            used if used >= quota * 90 => DatabaseRoom::AlmostFull,
            used if used >= quota * 80 => DatabaseRoom::NearQuota,
            used if used >= quota * 75 => DatabaseRoom::Less,
            _ => DatabaseRoom::Enough,
        })
    }
}

/// The certificate of an enrolled agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentIdentity {
    /// The serial number of its certificate, in hexadecimal digits.
    pub serial: String,
    /// The time after two thirds of the certificate's lifetime.
    pub renew_at: Time,
    /// When the certificate expires.
    pub not_after: Time,
    /// The SHA-256 of the authorities that the agent trusts for its driver, and of their revocation lists.
    pub trusts: String,
}

impl MachineState {
    /// Returns the state of an empty machine that reports nothing else.
    #[must_use]
    pub fn empty(runtime: RuntimeFacts) -> Self {
        Self {
            runtime,
            owner: None,
            applied: None,
            term: 0,
            sandboxes: Vec::new(),
            containers: Vec::new(),
            files: BTreeMap::new(),
            data: BTreeMap::new(),
            images: BTreeSet::new(),
            ports: PortFacts::default(),
            addresses: BTreeSet::new(),
            servers: BTreeMap::new(),
            capacity: None,
            kubelet_pods: 0,
            disk_pressure: false,
            disk: None,
            system: None,
            figures: BTreeMap::new(),
            healthy: BTreeSet::new(),
            failures: Vec::new(),
            identity: None,
            agent_id: None,
            formats: FormatRange::OWN,
            restores: true,
            prefetches: false,
        }
    }

    /// Returns whether the machine has an image, under the name that runtimes report.
    #[must_use]
    pub fn has_image(&self, image: &str) -> bool {
        self.images.contains(&*reported_name(image))
    }

    /// Returns whether the containers of a pod passed their check by the machine's agent.
    #[must_use]
    pub fn reports_healthy(&self, pod: &PodName) -> bool {
        let sandboxes = self.sandboxes.iter().filter(|sandbox| sandbox.ready && sandbox.pod == *pod);
        let mut running = sandboxes.flat_map(|sandbox| {
            let is_its = |container: &&ContainerState| container.sandbox == sandbox.id;
            self.containers.iter().filter(is_its).filter(|container| container.phase == ContainerPhase::Running)
        });
        running.next().is_some_and(|first| {
            self.healthy.contains(&first.id) && running.all(|container| self.healthy.contains(&container.id))
        })
    }
}

/// The reserved disk space in bytes. etcd preallocates 64 MiB for each segment of its log (`SegmentSizeBytes` of
/// `go.etcd.io/etcd/server/v3/storage/wal`). The same amount is for everything else.
pub const DISK_RESERVE: u64 = 128 << 20;

/// A server of a haproxy, as that haproxy reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerState {
    /// The address to which haproxy forwards connections.
    pub address: SocketAddr,
    /// The administrative state of the server.
    pub admin: ServerAdmin,
    /// The number of current connections to the server.
    pub sessions: u64,
    /// Whether haproxy's last check of the server succeeded. A server that responds that it is not ready fails the check.
    #[serde(default)]
    pub ready: bool,
}

impl ServerState {
    /// Whether haproxy passes new connections to the server.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.ready && self.admin == ServerAdmin::Serves
    }
}

/// The administrative state of a server in haproxy, independent of the server's checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServerAdmin {
    /// The server gets connections while its checks succeed.
    Serves,
    /// The server keeps its connections and gets no new ones.
    Drains,
    /// The server gets no connections.
    Maintenance,
}

/// The system of a machine, with the fields of a Node's `nodeInfo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SystemFacts {
    /// The kernel version, as `uname -r` prints it.
    pub kernel_version: String,
    /// `PRETTY_NAME` of its os-release, or empty if it has none.
    #[serde(default)]
    pub os_image: String,
    /// The CPU architecture with Go's name, such as `amd64`.
    pub architecture: String,
    /// The version of the agent, if the machine has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
}

/// The container runtime of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuntimeFacts {
    /// The name, such as `containerd` or `cri-o`.
    pub name: String,
    /// The version, as the runtime reports it, such as `v2.4.2`.
    pub version: String,
    /// The cgroup driver, which determines the notation of a parent cgroup.
    pub cgroup_driver: CgroupDriver,
}

/// The cgroup driver of a container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// The runtime manages the file system. A parent is a path.
    Cgroupfs,
    /// systemd manages them. A parent is a slice.
    Systemd,
}

/// A sandbox of Keelway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxState {
    /// The runtime's id.
    pub id: String,
    /// The component.
    pub pod: PodName,
    /// A number that increases with each new sandbox of the same pod.
    pub attempt: u32,
    /// [`PodDigests::replacement`] when it was created.
    pub digest: String,
    /// Whether it runs.
    pub ready: bool,
}

/// A container of one of Keelway's sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerState {
    /// The runtime's id.
    pub id: String,
    /// The sandbox of the container.
    pub sandbox: String,
    /// [`Container::name`].
    pub name: String,
    /// A number that increases with each new container of the same name in a sandbox.
    pub attempt: u32,
    /// The phase of the container.
    pub phase: ContainerPhase,
    /// [`Container::stop_seconds`] when it was created, from [`STOP_LABEL`]. `None` if it has no such label.
    pub stop_seconds: Option<u32>,
}

/// The phase of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerPhase {
    /// Created, but never started.
    Created,
    /// Running.
    Running,
    /// Exited, with its exit code.
    Exited {
        /// The exit code, which is 128 + n for signal n.
        code: i32,
    },
    /// The runtime does not know the phase.
    Unknown,
}

/// A file or directory of Keelway on the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileState {
    /// The user id of the owner.
    pub user: u32,
    /// The group id.
    pub group: u32,
    /// The permission bits, with set-id and sticky bits.
    pub mode: u32,
    /// SHA-256 of a file's content; `None` for a directory; empty for what is neither (a link, a socket, ..).
    pub sha256: Option<String>,
}

/// A data directory on the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataState {
    /// Whether it contains the mark of its pod.
    pub marked: bool,
    /// Whether it contains anything besides the mark.
    pub used: bool,
}

impl DataState {
    /// Whether a pod of this rule may be started on it.
    #[must_use]
    pub fn allows(self, start: Start) -> bool {
        match start {
            Start::Always => true,
            Start::Never | Start::Later | Start::Stopped | Start::Copied(_) => false,
            Start::OnMarkedData => self.marked,
            Start::OnUsedData => self.marked && self.used,
        }
    }
}

impl MachineState {
    /// Whether the machine holds a sandbox or the directory of a pod.
    #[must_use]
    pub fn holds(&self, pod: &PodName) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.pod == *pod)
            || self.files.contains_key(&format!("{}/{}", pod.cluster, pod.component))
    }

    /// Whether a data directory of the pod carries its mark.
    #[must_use]
    pub fn has_marked_data(&self, pod: &PodName) -> bool {
        let below = format!("{}/{}/", pod.cluster, pod.component);
        let own = self.data.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
        own.into_iter().any(|(_, data)| data.marked)
    }

    /// Pods that have a data directory with a mark.
    pub fn pods_with_marked_data(&self) -> impl Iterator<Item = PodName> {
        self.data.iter().filter(|(_, data)| data.marked).filter_map(|(path, _)| {
            let (pod, _) = path.rsplit_once('/')?;
            pod.parse().ok()
        })
    }

    /// Clusters with sandboxes or files on the machine. A cluster may occur twice.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> {
        let directories = self.files.keys().filter_map(|path| path.split('/').next());
        // The map is ordered, so files of one cluster are adjacent.
        let of_files =
            directories.scan("", |last, name| Some((core::mem::replace(last, name) != name).then_some(name)));
        let of_files = of_files.flatten().filter_map(|name| name.parse().ok());
        self.sandboxes.iter().map(|sandbox| sandbox.pod.cluster.clone()).chain(of_files)
    }

    /// The part of the state that concerns the machine itself and one cluster, without images.
    #[must_use]
    pub fn part_of(&self, id: &ClusterId) -> Self {
        let sandboxes: Vec<_> = self.sandboxes.iter().filter(|sandbox| sandbox.pod.cluster == *id).cloned().collect();
        let is_own = |container: &&ContainerState| sandboxes.iter().any(|sandbox| sandbox.id == container.sandbox);
        let containers: Vec<_> = self.containers.iter().filter(is_own).cloned().collect();
        let healthy = containers.iter().map(|container| &container.id).filter(|id| self.healthy.contains(*id));
        let healthy = healthy.cloned().collect();
        let servers = self.servers.iter().filter(|(pod, _)| pod.cluster == *id);
        let figures = self.figures.iter().filter(|(pod, _)| pod.cluster == *id);
        Self {
            files: below(&self.files, id),
            data: below(&self.data, id),
            servers: servers.map(|(pod, servers)| (pod.clone(), servers.clone())).collect(),
            figures: figures.map(|(pod, figures)| (pod.clone(), *figures)).collect(),
            healthy,
            sandboxes,
            containers,
            images: self.images.clone(),
            failures: self.failures.iter().filter(|failure| is_fetch_failure(failure)).cloned().collect(),
            ..self.facts()
        }
    }

    /// The part of the state that concerns the machine itself. Images matter only to clusters with components there.
    #[must_use]
    pub fn facts(&self) -> Self {
        Self {
            runtime: self.runtime.clone(),
            owner: self.owner.clone(),
            applied: self.applied.clone(),
            term: self.term,
            sandboxes: Vec::new(),
            containers: Vec::new(),
            files: BTreeMap::new(),
            data: BTreeMap::new(),
            images: BTreeSet::new(),
            ports: self.ports.clone(),
            addresses: self.addresses.clone(),
            servers: BTreeMap::new(),
            capacity: self.capacity,
            kubelet_pods: self.kubelet_pods,
            disk_pressure: self.disk_pressure,
            disk: self.disk,
            system: self.system.clone(),
            figures: BTreeMap::new(),
            healthy: BTreeSet::new(),
            failures: Vec::new(),
            identity: self.identity.clone(),
            agent_id: self.agent_id.clone(),
            formats: self.formats,
            restores: self.restores,
            prefetches: self.prefetches,
        }
    }

    /// The data directory of this name of a pod. A missing one counts as neither marked nor used.
    #[must_use]
    pub fn data_of(&self, pod: &PodName, name: &str) -> DataState {
        self.data.get(&format!("{}/{}/{name}", pod.cluster, pod.component)).copied().unwrap_or_default()
    }

    /// The highest number of a copy of a data directory ([`super::copy_name`]). None: there is no copy.
    #[must_use]
    pub fn last_copy_of(&self, pod: &PodName, name: &str) -> Option<u32> {
        let copies = format!("{}/{}/{name}{COPY}", pod.cluster, pod.component);
        let found = self.data.range(copies.clone()..).map_while(|(path, _)| path.strip_prefix(&copies));
        found.filter_map(|number| number.parse().ok()).max()
    }
}

/// The entries in the directory of a cluster, and that directory itself.
fn below<T: Clone>(all: &BTreeMap<String, T>, id: &ClusterId) -> BTreeMap<String, T> {
    let directory = id.as_str();
    let from = all.range(directory.to_owned()..).take_while(|(path, _)| path.starts_with(directory));
    from.map(|(path, found)| (path.clone(), found.clone())).collect()
}

/// The observed ports of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortFacts {
    /// `net.ipv4.ip_local_port_range`, both ends included: the kernel uses these for outgoing connections.
    pub ephemeral: Option<(u16, u16)>,
    /// `net.ipv4.ip_unprivileged_port_start`: a process without privileges may listen on this port and higher ones. `None`: the agent does not report
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unprivileged_from: Option<u16>,
    /// The ports on which a process listens.
    pub listening: BTreeSet<u16>,
}

/// A value that could be observed or not. An unreachable value is not an empty one: Keelway plans nothing on values that it could not
/// observe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ObservedValue<T> {
    /// The value was observed.
    Known(T),
    /// The value could not be observed.
    #[serde(rename_all = "camelCase")]
    Unreachable {
        /// The party that does not respond.
        #[serde(default)]
        silent: UnreachableReason,
        /// The reason, as text for people.
        why: String,
    },
}

/// The party that does not respond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnreachableReason {
    /// The machine or component itself.
    #[default]
    Asked,
    /// The container runtime of a machine that itself responds.
    Runtime,
    /// A machine that responds, but obeys another driver.
    Led,
    /// The agent of a machine whose container runtime responds and runs no agent.
    Agent,
}

impl<T> ObservedValue<T> {
    /// The machine or component does not respond.
    pub fn unreachable(why: impl Into<String>) -> Self {
        Self::Unreachable { silent: UnreachableReason::Asked, why: why.into() }
    }

    /// The value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(fact) => Some(fact),
            Self::Unreachable { .. } => None,
        }
    }
}

/// A map whose keys are names of pods, as text.
mod by_text {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::name::PodName;

    pub(super) fn serialize<V: Serialize, S: Serializer>(
        map: &BTreeMap<PodName, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(name, value)| (name.to_string(), value)))
    }

    pub(super) fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<PodName, V>, D::Error> {
        let texts: BTreeMap<String, V> = BTreeMap::deserialize(deserializer)?;
        texts.into_iter().map(|(name, value)| Ok((name.parse().map_err(D::Error::custom)?, value))).collect()
    }
}
