//! What a machine should run and what was seen on it: the nouns of the second level of planning.

pub mod event;
mod format;
mod replacement;
mod revision;

use core::{fmt, net::SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    Time,
    hypervisor::Applied,
    name::{ClusterId, InstallationId, PodName},
    quantity::Memory,
    registry::RegistryCredentials,
    resources::SMALLEST_QUOTA,
};

pub use event::MachineEvent;
pub use format::{ConfigFormat, FormatRange};
pub use replacement::FILES;

/// Where a machine keeps everything of Keelway's, as an absolute path on the machine.
pub const STATE_DIRECTORY: &str = "/var/lib/keelway";

/// The label of our sandboxes and containers that holds the cluster's id. Pods without it are never touched.
pub const CLUSTER_LABEL: &str = "keelway.dev/cluster-id";
/// The label that names the installation on each of its Secrets.
pub const INSTALLATION_LABEL: &str = "keelway.dev/installation-id";
/// The label of our sandboxes and containers that holds the component's name.
pub const COMPONENT_LABEL: &str = "keelway.dev/component";
/// The label of the sandbox that holds the helper of a machine without an agent, with the machine's name.
pub const HELPER_LABEL: &str = "keelway.dev/helper";
/// The annotation of our sandboxes that holds [`PodDigests::replacement`]: a pod is replaced when it differs.
pub const DIGEST_ANNOTATION: &str = "keelway.dev/digest";

/// Where a haproxy is asked and told about its servers while it runs: its stats socket, relative to
/// `STATE_DIRECTORY/CLUSTER/COMPONENT`.
pub const STATS_SOCKET: &str = "run/admin.sock";
/// The database of an etcd member, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT` (`ToBackendFileName` of
/// `go.etcd.io/etcd/server/v3/storage/datadir`).
pub const ETCD_DATABASE: &str = "data/member/snap/db";
/// How large an etcd member's database may grow before it takes no more writes (`--quota-backend-bytes`), in bytes, where its Cluster says
/// nothing else: twice etcd's default, half of what its documentation calls the most.
pub const ETCD_QUOTA: u64 = 4 << 30;
/// Where a gateway tells its metrics, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`.
pub const GATEWAY_METRICS: &str = "peers/metrics.sock";
/// [`PodFile::path`] of the certificate that the server of a pod shows, for [`ContainerCheck::Https`].
pub const SERVING_CERTIFICATE: &str = "server.crt";
/// The file that says of a data directory that it was made for this pod and not lost since: see [`Start`] and [`data_mark`].
pub const DATA_MARK: &str = "keelway-mark";

/// The label of our containers that holds [`Container::stop_seconds`]: one that is no longer wanted gets its own time to drain.
pub const STOP_LABEL: &str = "keelway.dev/stop-seconds";

/// Everything that one machine should hold, with the fence that orders it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineConfig {
    /// Which fields of it its reader has to understand.
    #[serde(default)]
    pub format: ConfigFormat,
    /// The owner. A machine that obeys another one refuses.
    pub installation: InstallationId,
    /// Which driver wrote this, counted up with each new one. Ordered before the generation.
    pub term: u64,
    /// Counted up with each change of content. The same number with other content is refused.
    pub generation: u64,
    /// The pods by name.
    pub pods: BTreeMap<PodName, Pod>,
    /// Clusters on the machine that lose nothing there: those that the documents do not tell of, and paused ones. Nothing of them is
    /// touched but these pods.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub others: BTreeSet<ClusterId>,
    /// The etcd members whose data this machine is to remove. Marked data of a pod that stands in neither map is left alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removals: BTreeMap<PodName, DataRemoval>,
}

/// An order to remove the data directory of an etcd member. The documents hold it before a machine gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRemoval {
    /// etcd's id of the member, in hexadecimal digits.
    pub member: String,
    /// Why the data is removed, as [`crate::cluster::RemovalReason`] is written.
    pub reason: String,
}

/// One component on a machine: a sandbox on the host's network, its files, its containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// The user and group id that its containers run as and its files belong to.
    pub user: u32,
    /// Files below `STATE_DIRECTORY/CLUSTER/COMPONENT/files`.
    pub files: Vec<PodFile>,
    /// Directories below `STATE_DIRECTORY/CLUSTER/COMPONENT` that the component writes to. Kept until the component goes.
    pub data: Vec<String>,
    /// The containers, started in this order: the last one is what the pod is there for, and the others stand beside it.
    pub containers: Vec<Container>,
    /// The image of the sandbox itself, by its full name.
    pub pause_image: String,
    /// What its haproxy passes connections on to, beside what its files say for its next start. `None`: it runs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<HaproxyServers>,
    /// What its data directories must hold before anything of it is started.
    #[serde(default)]
    pub start: Start,
    /// Whether what runs of it goes on although it is to be replaced: the turn of another pod that does the same work is
    /// first. What does not run is not held.
    #[serde(default)]
    pub hold: bool,
    /// Who pulls its images, by image, where their registries want to know.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub registries: BTreeMap<String, RegistryCredentials>,
}

/// The servers behind a haproxy. They change while it runs, and no connection but those to the server in question notices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaproxyServers {
    /// How each of them is checked, in haproxy's words. What they name was loaded when haproxy started.
    pub options: String,
    /// Where they are, by haproxy's name of a server: `BACKEND/SERVER`.
    pub addresses: BTreeMap<String, SocketAddr>,
}

/// What the data directories of a pod must hold before anything of it is started. Whatever runs goes on in any case.
///
/// A member of a store that comes back empty has forgotten what it promised to the others, and could undo what they agreed
/// on. So the machine marks the directories first, the documents write down that the mark was seen, and only then is there
/// a first start: at any later moment a directory without its mark is known to have lost its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Start {
    /// Nothing: what it writes can be made anew.
    #[default]
    Always,
    /// Not yet: all is made ready, the marks included.
    Never,
    /// Not yet, and without marks: all is made ready, and what it writes can be made anew.
    Later,
    /// The mark.
    OnMarkedData,
    /// The mark and something beside it: the pod was seen at work.
    OnUsedData,
}

impl Start {
    /// Whether nothing of the pod is started yet.
    #[must_use]
    pub fn waits(self) -> bool {
        match self {
            Self::Never | Self::Later => true,
            Self::Always | Self::OnMarkedData | Self::OnUsedData => false,
        }
    }
}

/// A file that a component reads. Owned by the pod's user and group, mode 0600.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFile {
    /// Relative to the pod's `files` directory, without `.` or `..`.
    pub path: String,
    /// The bytes. Not shown by `Debug`: they may be a key.
    #[serde(with = "base64_text")]
    pub content: Vec<u8>,
    /// What a change of the content asks for.
    pub on_change: OnChange,
}

/// Bytes in JSON as Kubernetes writes them: a list of numbers is three times as long.
mod base64_text {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use k8s_openapi::ByteString;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        ByteString::deserialize(deserializer).map(|text| text.0)
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

impl fmt::Debug for PodFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodFile")
            .field("path", &self.path)
            .field("bytes", &self.content.len())
            .field("on_change", &self.on_change)
            .finish()
    }
}

/// What a change of a file asks for, by who reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnChange {
    /// The program watches the file, or reads it at each use.
    PickedUp,
    /// The program reads it once, at its start: the pod is replaced.
    Restart,
}

/// One container of a pod, without privilege of any kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Within the pod.
    pub name: String,
    /// By its full public name, tag included.
    pub image: String,
    /// The program and its arguments. Never holds a key.
    pub command: Vec<String>,
    /// What it sees of the pod's directories.
    pub mounts: Vec<Mount>,
    /// Bounds on what it may use.
    pub resources: ContainerResources,
    /// Seconds from SIGTERM to SIGKILL: long enough to drain.
    pub stop_seconds: u32,
    /// How an agent tells that it runs and does nothing any more. `None`: only its end counts.
    pub liveness: Option<Liveness>,
}

/// A check that a running container is asked again and again by the agent beside it; one that fails it too often in a row is
/// restarted. Terms are those of Kubernetes' probes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Liveness {
    /// What is asked.
    pub check: ContainerCheck,
    /// Seconds from one question to the next, at least 1.
    pub period_seconds: u32,
    /// Seconds that an answer may take, at least 1.
    pub timeout_seconds: u32,
    /// So many failures in a row are one too many, at least 1.
    pub failure_threshold: u32,
    /// Seconds from the start for which no failure counts, unless there was a success. `None`: no failure counts before the
    /// first success.
    pub startup_seconds: Option<u32>,
}

/// A question to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerCheck {
    /// `GET` over TLS, from the machine's own network; 200 is success, and so is that the server refuses the certificate that it is shown.
    /// The server is known by the key in [`SERVING_CERTIFICATE`]: dates and issuer are nothing that a restart could mend.
    Https {
        /// Where.
        address: SocketAddr,
        /// The path, with its query.
        path: String,
        /// The name that is asked for.
        server_name: String,
        /// The file of the pod with the authorities that the certificate comes from, in PEM. Agents of the last release verify by it.
        authority: String,
        /// The files of the pod with the certificate to show, where one is asked for.
        identity: Option<CertificateFiles>,
    },
    /// `GET` without TLS, on loopback; 200 is success.
    Http {
        /// Where.
        address: SocketAddr,
        /// The path.
        path: String,
    },
    /// A line on a Unix socket of the pod's; an answer that begins as it should is success.
    Socket {
        /// Relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`: one of [`Pod::data`], and a name in it.
        path: String,
        /// The line, without its end.
        request: String,
        /// How the answer begins.
        answer: String,
    },
}

/// A certificate with its key, among the files of a pod, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFiles {
    /// [`PodFile::path`] of the certificate.
    pub certificate: String,
    /// [`PodFile::path`] of the key.
    pub key: String,
}

/// A directory of the pod inside a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`: `files`, or one of [`Pod::data`].
    pub source: String,
    /// The absolute path inside the container.
    pub target: String,
    /// Whether the container may only read.
    pub read_only: bool,
}

/// Bounds of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResources {
    /// Share of CPU when the machine is busy, in thousandths of a core.
    pub cpu_request_millis: u32,
    /// Most CPU at any time, in thousandths of a core. `None`: no bound but the share.
    pub cpu_limit_millis: Option<u32>,
    /// Most memory, in bytes.
    pub memory_limit_bytes: u64,
}

/// The content of a data directory's [`DATA_MARK`]. It names the pod, so that data of another one does not count.
#[must_use]
pub fn data_mark(pod: &PodName) -> String {
    format!("{pod}\n")
}

/// A SHA-256 in lowercase hexadecimal digits.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes in lowercase hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(if value < 10 { b'0' + value } else { b'a' + value - 10 });
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 0xf));
    }
    text
}

/// A SHA-256.
pub type Digest = [u8; 32];

/// The digests of a pod, which take longer to make than all else that is decided of it.
///
/// A driver makes them all. An agent compares those that it is sent and never makes them, so that a driver of a newer release may make
/// them in another way; only of files on its disk does it make digests itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDigests {
    /// [`Pod::digest`]: another one needs a new pod.
    pub replacement: String,
    /// Of the content of each file, in their order: SHA-256 in lowercase hexadecimal digits.
    pub files: Vec<String>,
    /// [`Pod::content_digest`]: of all of it.
    pub content: Vec<u8>,
}

impl MachineConfig {
    /// A digest of the content, the fence left out: equal digests mean the same wanted state. For drivers.
    #[must_use]
    pub fn digest(&self) -> String {
        let digests: BTreeMap<_, _> =
            self.pods.iter().map(|(name, pod)| (name.clone(), pod.content_digest())).collect();
        config_digest(self.format, &self.installation, &digests, (&self.others, &self.removals))
    }

    /// The digests of its pods. For drivers.
    #[must_use]
    pub fn pod_digests(&self) -> BTreeMap<PodName, PodDigests> {
        self.pods.iter().map(|(name, pod)| (name.clone(), pod.digests())).collect()
    }
}

/// [`MachineConfig::digest`], for who knows [`Pod::content_digest`] of each pod.
#[must_use]
pub fn config_digest(
    format: ConfigFormat,
    installation: &InstallationId,
    pods: &BTreeMap<PodName, impl AsRef<[u8]>>,
    (others, removals): (&BTreeSet<ClusterId>, &BTreeMap<PodName, DataRemoval>),
) -> String {
    revision::config(format, installation, pods, (others, removals))
}

impl Pod {
    /// All digests of it. For drivers.
    #[must_use]
    pub fn digests(&self) -> PodDigests {
        let files = self.file_digests();
        PodDigests { replacement: self.digest(), content: revision::content(self, &files).to_vec(), files }
    }

    /// All digests of it, as its driver made them of it.
    #[must_use]
    pub fn with_revision(&self, replacement: String, content: Vec<u8>) -> PodDigests {
        PodDigests { replacement, files: self.file_digests(), content }
    }

    /// A digest of all of it: equal digests mean the same pod. For drivers.
    #[must_use]
    pub fn content_digest(&self) -> Digest {
        revision::content(self, &self.file_digests())
    }

    fn file_digests(&self) -> Vec<String> {
        self.files.iter().map(|file| sha256_hex(&file.content)).collect()
    }

    /// A digest of all that needs a new pod when it changes. For drivers.
    #[must_use]
    pub fn digest(&self) -> String {
        revision::replacement(self)
    }
}

/// What was seen on a machine, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineState {
    /// The runtime behind the CRI endpoint.
    pub runtime: RuntimeFacts,
    /// Who the machine obeys, from its owner file. `None`: nobody yet.
    pub owner: Option<InstallationId>,
    /// The last config that was applied, from the machine's own record.
    pub applied: Option<Applied>,
    /// The term of the newest leader that it was told of: it takes no config of those before. 0: of none, or it does not remember.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub term: u64,
    /// Our sandboxes, newest first.
    pub sandboxes: Vec<SandboxState>,
    /// Containers of our sandboxes, newest first.
    pub containers: Vec<ContainerState>,
    /// Our files and directories, by path relative to [`STATE_DIRECTORY`], which is itself the empty path. Of data directories only themselves.
    pub files: BTreeMap<String, FileState>,
    /// The data directories of our pods, by path relative to [`STATE_DIRECTORY`].
    #[serde(default)]
    pub data: BTreeMap<String, DataState>,
    /// References of the images that are there.
    pub images: BTreeSet<String>,
    /// TCP and UDP ports.
    pub ports: PortFacts,
    /// The servers of each haproxy that answers, by `CLUSTER/COMPONENT` and `BACKEND/SERVER`.
    #[serde(default, with = "by_text", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, BTreeMap<String, ServerState>>")]
    pub servers: BTreeMap<PodName, BTreeMap<String, ServerState>>,
    /// How much it has. `None`: it does not tell, and is taken to have enough.
    #[serde(default)]
    pub capacity: Option<Amount>,
    /// How many pods of a kubelet its runtime has.
    #[serde(default)]
    pub kubelet_pods: usize,
    /// Whether less than [`DISK_RESERVE`] is left below [`STATE_DIRECTORY`].
    #[serde(default)]
    pub disk_pressure: bool,
    /// The file system below [`STATE_DIRECTORY`]. `None`: it does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// What it is itself. `None`: it does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<SystemFacts>,
    /// How much components hold, of those that tell.
    #[serde(default, with = "by_text", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Figures>")]
    pub figures: BTreeMap<PodName, Figures>,
    /// Ids of containers that answered their [`Container::liveness`] check when the machine's agent asked them last. Where there is
    /// no agent, none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub healthy: BTreeSet<String>,
    /// What the machine's agent could not do and has not done since, in words for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// With what the machine's agent answers on a network. Where it was not enrolled, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<AgentIdentity>,
    /// The id that the machine's agent made for itself when it started: two documents with the same one are of one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The formats of configs that the machine understands.
    #[serde(default, skip_serializing_if = "FormatRange::is_of_v0_1_0")]
    pub formats: FormatRange,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How much a component holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Figures {
    /// The file of an etcd member's database, in bytes: it grows, and gets smaller where it is defragmented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_bytes: Option<u64>,
    /// The WireGuard peers of a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<u64>,
    /// Whether an etcd member says that its store has raised the alarm `NOSPACE`: it takes no writes until somebody disarms the alarm.
    /// Machines without an agent do not ask.
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_space: bool,
}

/// How much of its quota the database of an etcd member uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DatabaseRoom {
    /// Less than 75 %.
    Enough,
    /// 75 to 80 %: too much for one that was near its quota to count as well again.
    Less,
    /// 80 % or more, where the alert `KeelwayEtcdQuotaLow` fires, too.
    NearQuota,
    /// It takes no writes any more.
    NoSpace,
}

impl Figures {
    /// Whether two looks at a component tell about the same: its database differs by less than a twentieth of what it has, or of the smallest
    /// quota.
    #[must_use]
    pub fn are_about_equal(one: &Self, other: &Self) -> bool {
        let databases = match (one.database_bytes, other.database_bytes) {
            (Some(one), Some(other)) => one.abs_diff(other) < one.max(other).max(SMALLEST_QUOTA.bytes()) / 20,
            (one, other) => one == other,
        };
        databases && one.peers == other.peers && one.no_space == other.no_space
    }

    /// `None`: it is no etcd member, or does not tell.
    #[must_use]
    pub fn database_room(&self, quota: Memory) -> Option<DatabaseRoom> {
        if self.no_space {
            return Some(DatabaseRoom::NoSpace);
        }
        let (bytes, quota) = (u128::from(self.database_bytes?), u128::from(quota.bytes()));
        Some(match bytes * 100 {
            used if used >= quota * 80 => DatabaseRoom::NearQuota,
            used if used >= quota * 75 => DatabaseRoom::Less,
            _ => DatabaseRoom::Enough,
        })
    }
}

/// With what an agent that was enrolled answers on a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentIdentity {
    /// The serial number of its certificate, in hexadecimal digits.
    pub serial: String,
    /// When two thirds of the certificate's life are over.
    pub renew_at: Time,
    /// When the certificate ends.
    pub not_after: Time,
    /// SHA-256 of the authorities that it takes for those of its driver, and of what these revoked.
    pub trusts: String,
}

impl MachineState {
    /// A machine on which nothing is, and that tells nothing more of itself.
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
        }
    }

    /// Whether the machine's agent vouches for a pod: what runs of it answered its check.
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

/// In bytes. etcd reserves 64 MiB for each segment of its log before it goes on writing (`SegmentSizeBytes` of
/// `go.etcd.io/etcd/server/v3/storage/wal`); as much again is for all others.
pub const DISK_RESERVE: u64 = 128 << 20;

/// A server behind a haproxy, as that haproxy tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerState {
    /// Where connections are passed on to.
    pub address: SocketAddr,
    /// What haproxy was told to do with it.
    pub admin: ServerAdmin,
    /// Connections that are passed on to it right now.
    pub sessions: u64,
    /// Whether the last of haproxy's own checks of it succeeded. One that answers that it is not ready did not.
    #[serde(default)]
    pub ready: bool,
}

/// What a haproxy was told to do with one of its servers. Whether the server's checks succeed is another matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServerAdmin {
    /// It gets connections while its checks succeed.
    Serves,
    /// It keeps those that it has, and gets no more.
    Drains,
    /// It has none.
    Maintenance,
}

/// An amount of what components use up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Amount {
    /// In thousandths of a core.
    pub cpu_millis: u64,
    /// In bytes.
    pub memory_bytes: u64,
}

impl Amount {
    /// What of a machine may be given to components: all but a tenth of a core and 256 MiB, for its system and its runtime.
    #[must_use]
    pub fn allocatable(self) -> Self {
        self.less(Self { cpu_millis: 100, memory_bytes: 256 << 20 })
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// What is left of this without the other; never below nothing.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    /// Whether the other fits into this.
    #[must_use]
    pub fn holds(self, other: Self) -> bool {
        self.cpu_millis >= other.cpu_millis && self.memory_bytes >= other.memory_bytes
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}m CPU and {} MiB", self.cpu_millis, self.memory_bytes >> 20)
    }
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disk {
    /// How large it is.
    pub capacity_bytes: u64,
    /// What root may still write.
    pub available_bytes: u64,
}

impl Disk {
    /// Whether two looks at a disk tell about the same: how much is left of it differs by less than a twentieth of it.
    #[must_use]
    pub fn are_about_equal(one: Option<Self>, other: Option<Self>) -> bool {
        let (Some(one), Some(other)) = (one, other) else { return one == other };
        // Amounts are written in KiB.
        one.capacity_bytes >> 10 == other.capacity_bytes >> 10
            && one.available_bytes.abs_diff(other.available_bytes) < one.capacity_bytes / 20
    }
}

/// The system of a machine, in the words of a Node's `nodeInfo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SystemFacts {
    /// As `uname -r` says it.
    pub kernel_version: String,
    /// `PRETTY_NAME` of its os-release; empty where it has none.
    #[serde(default)]
    pub os_image: String,
    /// As Go names it: `amd64`.
    pub architecture: String,
    /// The version of its agent, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
}

/// The runtime of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuntimeFacts {
    /// `containerd`, `cri-o`, ..
    pub name: String,
    /// As the runtime says it: `v2.4.2`.
    pub version: String,
    /// Who makes cgroups: decides how a parent is written.
    pub cgroup_driver: CgroupDriver,
}

/// Who makes the cgroups of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// The runtime writes the file system; a parent is a path.
    Cgroupfs,
    /// systemd does; a parent is a slice.
    Systemd,
}

/// One of our sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxState {
    /// The runtime's id.
    pub id: String,
    /// Which component it is.
    pub pod: PodName,
    /// Counted up with each new sandbox of the same pod.
    pub attempt: u32,
    /// [`PodDigests::replacement`] at the time it was made.
    pub digest: String,
    /// Whether it runs.
    pub ready: bool,
}

/// A container of one of our sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerState {
    /// The runtime's id.
    pub id: String,
    /// The sandbox that it belongs to.
    pub sandbox: String,
    /// [`Container::name`].
    pub name: String,
    /// Counted up with each new container of the same name in a sandbox.
    pub attempt: u32,
    /// Where it is in its life.
    pub phase: ContainerPhase,
    /// [`Container::stop_seconds`] at the time it was made, from [`STOP_LABEL`]. `None`: it carries none.
    pub stop_seconds: Option<u32>,
}

/// Where a container is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerPhase {
    /// Made, never started.
    Created,
    /// Running.
    Running,
    /// Ended, with its exit code.
    Exited {
        /// As the kernel tells it; 128 + n for signal n.
        code: i32,
    },
    /// The runtime does not know.
    Unknown,
}

/// A file or directory of ours as it stands on the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileState {
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Permission bits, with set-id and sticky bits.
    pub mode: u32,
    /// SHA-256 of a file's content; `None` for a directory; empty for what is neither (a link, a socket, ..).
    pub sha256: Option<String>,
}

/// A data directory as it stands on the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataState {
    /// Whether it carries the mark of its pod.
    pub marked: bool,
    /// Whether anything beside the mark is in it.
    pub used: bool,
}

impl DataState {
    /// Whether a pod of this rule may be started on it.
    #[must_use]
    pub fn allows(self, start: Start) -> bool {
        match start {
            Start::Always => true,
            Start::Never | Start::Later => false,
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

    /// Clusters of which there are sandboxes or files, some of them maybe twice.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> {
        let directories = self.files.keys().filter_map(|path| path.split('/').next());
        // Files of one cluster stand side by side.
        let of_files =
            directories.scan("", |last, name| Some((core::mem::replace(last, name) != name).then_some(name)));
        let of_files = of_files.flatten().filter_map(|name| name.parse().ok());
        self.sandboxes.iter().map(|sandbox| sandbox.pod.cluster.clone()).chain(of_files)
    }

    /// What the machine tells of itself and of one cluster, without its images.
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
            ..self.facts()
        }
    }

    /// What the machine tells of itself alone, without its images, which decide nothing.
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
        }
    }

    /// The data directory of this name of a pod; one that is not there is neither marked nor used.
    #[must_use]
    pub fn data_of(&self, pod: &PodName, name: &str) -> DataState {
        self.data.get(&format!("{}/{}/{name}", pod.cluster, pod.component)).copied().unwrap_or_default()
    }
}

/// What is in the directory of a cluster, with that directory itself.
fn below<T: Clone>(all: &BTreeMap<String, T>, id: &ClusterId) -> BTreeMap<String, T> {
    let directory = id.as_str();
    let from = all.range(directory.to_owned()..).take_while(|(path, _)| path.starts_with(directory));
    from.map(|(path, found)| (path.clone(), found.clone())).collect()
}

/// What is known of a machine's ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortFacts {
    /// `net.ipv4.ip_local_port_range`, both ends included: the kernel gives these to outgoing connections.
    pub ephemeral: Option<(u16, u16)>,
    /// Ports that something listens on.
    pub listening: BTreeSet<u16>,
}

/// A fact that may be out of reach. Unreachable is not empty: nothing is planned on what could not be observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ObservedValue<T> {
    /// It was observed.
    Known(T),
    /// It could not be observed, and why, in words for people.
    #[serde(rename_all = "camelCase")]
    Unreachable {
        /// Who gives no answer.
        #[serde(default)]
        silent: UnreachableReason,
        /// The reason.
        why: String,
    },
}

/// Who gives no answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnreachableReason {
    /// Whoever would have to be asked.
    #[default]
    Asked,
    /// The container runtime of a machine that is there itself.
    Runtime,
    /// A machine that is there, and obeys another leader.
    Led,
}

impl<T> ObservedValue<T> {
    /// Whoever would have to be asked gives no answer.
    pub fn unreachable(why: impl Into<String>) -> Self {
        Self::Unreachable { silent: UnreachableReason::Asked, why: why.into() }
    }

    /// The fact, where it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(fact) => Some(fact),
            Self::Unreachable { .. } => None,
        }
    }
}
