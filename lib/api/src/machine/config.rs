//! What a machine is to run.

use core::{fmt, net::SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    machine::format::ConfigFormat,
    name::{ClusterId, InstallationId, PodName},
    registry::RegistryCredentials,
};

/// What a machine is to run, with the numbers by which it refuses an older config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineConfig {
    /// Which fields a reader must understand.
    #[serde(default)]
    pub format: ConfigFormat,
    /// The installation. A machine that obeys another one refuses the config.
    pub installation: InstallationId,
    /// The term of the driver, which increases with each new driver. It is compared before the generation.
    pub term: u64,
    /// Increases with each change of content. A machine refuses the same number with other content.
    pub generation: u64,
    /// The pods by name.
    pub pods: BTreeMap<PodName, Pod>,
    /// Clusters that lose nothing on the machine: those without documents, and paused ones. Of these, the machine changes only
    /// the pods in `pods`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub others: BTreeSet<ClusterId>,
    /// The etcd members whose data the machine is to remove. Marked data of a pod in neither map is kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removals: BTreeMap<PodName, DataRemoval>,
}

/// An order to remove the data directory of an etcd member. The documents hold it before a machine gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRemoval {
    /// etcd's id of the member, in hexadecimal digits.
    pub member: String,
    /// Why the data is removed, as [`RemovalReason::as_str`] returns it.
    pub reason: String,
}

/// Why the data of an etcd member is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RemovalReason {
    /// Its cluster is deleted.
    ClusterDeleted,
    /// The store has removed the member.
    MemberRemoved,
    /// The store was rebuilt from another member.
    StoreRebuilt,
}

impl RemovalReason {
    /// Returns the reason, as written in documents and configs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterDeleted => "ClusterDeleted",
            Self::MemberRemoved => "MemberRemoved",
            Self::StoreRebuilt => "StoreRebuilt",
        }
    }
}

/// One component on a machine: a sandbox on the host's network, its files, its containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// The id of the user and group that runs the containers and owns the files.
    pub user: u32,
    /// Files below `STATE_DIRECTORY/CLUSTER/COMPONENT/files`.
    pub files: Vec<PodFile>,
    /// Directories below `STATE_DIRECTORY/CLUSTER/COMPONENT` that the component writes to. They are kept until the component is removed.
    pub data: Vec<String>,
    /// The containers, in the order in which they start. The last one is the component, and the others support it.
    pub containers: Vec<Container>,
    /// The image of the sandbox itself, by its full name.
    pub pause_image: String,
    /// The servers of its haproxy while it runs; its files contain those for its next start. `None`: the pod has no haproxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<HaproxyServers>,
    /// What its data directories must contain before it starts.
    #[serde(default)]
    pub start: Start,
    /// Whether the running pod is kept although it is to be replaced, because another pod of the same role is replaced first. It does not
    /// keep a pod from starting.
    #[serde(default)]
    pub hold: bool,
    /// The credentials for registries that require them, by image.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub registries: BTreeMap<String, RegistryCredentials>,
    /// Images that the next version of the pod needs. The machine fetches them while the pod runs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub prefetch: BTreeSet<String>,
}

/// How a failure to fetch an image of [`Pod::prefetch`] begins in [`MachineState::failures`](super::MachineState::failures).
const FETCH_FAILURE: &str = "cannot fetch image ";

/// Returns a failure to fetch an image.
#[must_use]
pub fn fetch_failure(image: &str, why: impl fmt::Display) -> String {
    format!("{FETCH_FAILURE}{image}: {why}")
}

/// Returns whether a failure is one of [`fetch_failure`].
pub(super) fn is_fetch_failure(failure: &str) -> bool {
    failure.starts_with(FETCH_FAILURE)
}

/// The servers behind a haproxy. They change while it runs, which affects only connections to the changed server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaproxyServers {
    /// The options of each server's check, in haproxy's syntax. The files that they name were loaded when haproxy started.
    pub options: String,
    /// Their addresses, by haproxy's name of a server: `BACKEND/SERVER`.
    pub addresses: BTreeMap<String, SocketAddr>,
}

/// What the data directories of a pod must contain before it starts. A running pod is not affected, except by [`Self::Stopped`] and
/// [`Self::Copied`].
///
/// An etcd member that returns without its data has forgotten its votes, and could undo what the others agreed on. So the machine marks the
/// directories first, the documents record that the mark was observed, and only then does the member start for the first time. From then on, a
/// directory without its mark has lost its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Start {
    /// Nothing: what the pod writes can be recreated.
    #[default]
    Always,
    /// It does not start yet. The machine prepares everything, including the marks.
    Never,
    /// It does not start yet, and has no marks. The machine prepares everything; what the pod writes can be recreated.
    Later,
    /// The mark.
    OnMarkedData,
    /// The mark and other content: the pod was observed running.
    OnUsedData,
    /// It does not run: the machine stops it. Its files and its data stay as they are.
    Stopped,
    /// It does not run: the machine stops it, and copies each data directory beside itself ([`copy_name`]), unless that copy is complete. Its
    /// files and its data stay as they are.
    Copied(u32),
}

impl Start {
    /// Returns whether the pod does not start yet.
    #[must_use]
    pub fn waits(self) -> bool {
        match self {
            Self::Never | Self::Later => true,
            Self::Always | Self::OnMarkedData | Self::OnUsedData | Self::Stopped | Self::Copied(_) => false,
        }
    }

    /// Returns whether the pod does not run: the machine stops it if it does.
    #[must_use]
    pub fn stops(self) -> bool {
        match self {
            Self::Stopped | Self::Copied(_) => true,
            Self::Always | Self::Never | Self::Later | Self::OnMarkedData | Self::OnUsedData => false,
        }
    }
}

/// Returns the name of a copy of a data directory. The machine keeps it until the component is removed.
#[must_use]
pub fn copy_name(data: &str, copy: u32) -> String {
    format!("{data}{COPY}{copy}")
}

/// What is between the name of a data directory and the number of a copy.
pub(super) const COPY: &str = ".copy-";

/// A file that a component reads. Owned by the pod's user and group, mode 0600.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFile {
    /// Relative to the pod's `files` directory, without `.` or `..`.
    pub path: String,
    /// The bytes. Not shown by `Debug`: they may be a key.
    #[serde(with = "base64_text")]
    pub content: Vec<u8>,
    /// What a change of the content requires.
    pub on_change: OnChange,
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

/// What a change of a file requires, depending on the program that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnChange {
    /// The program watches the file, or reads it at each use.
    PickedUp,
    /// The program reads it only at its start, so the pod is replaced.
    Restart,
}

/// One container of a pod, without privileges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The name within the pod.
    pub name: String,
    /// The full public name of the image, with its tag.
    pub image: String,
    /// The program and its arguments. They contain no key.
    pub command: Vec<String>,
    /// The directories of the pod that it mounts.
    pub mounts: Vec<Mount>,
    /// Its requests and limits.
    pub resources: ContainerResources,
    /// The time from SIGTERM to SIGKILL, in seconds. It is long enough to drain.
    pub stop_seconds: u32,
    /// The probe by which an agent detects that the container hangs. `None`: the agent restarts it only when it exits.
    pub liveness: Option<Liveness>,
}

/// A probe of a running container, which the agent repeats. The agent restarts a container after too many failures in a row. The terms are those
/// of Kubernetes' probes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Liveness {
    /// The request of the probe.
    pub check: ContainerCheck,
    /// The time between two probes, in seconds; at least 1.
    pub period_seconds: u32,
    /// The time limit of a probe, in seconds; at least 1.
    pub timeout_seconds: u32,
    /// The number of failures in a row after which the container is restarted; at least 1.
    pub failure_threshold: u32,
    /// The time after the start in which failures do not count before the first success, in seconds. `None`: no failure counts before
    /// the first success.
    pub startup_seconds: Option<u32>,
}

/// The request of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerCheck {
    /// `GET` over TLS, from the machine's own network. A response of 200 is success, and so is a server that refuses the client's certificate.
    /// The server is identified by the key in [`SERVING_CERTIFICATE`](super::SERVING_CERTIFICATE): a restart cannot repair dates or the issuer.
    Https {
        /// The address.
        address: SocketAddr,
        /// The path, with its query.
        path: String,
        /// The expected name of the server.
        server_name: String,
        /// The file of the pod with the authorities of the server's certificate, in PEM. Agents of the last release verify with it.
        authority: String,
        /// The files of the pod with the client certificate, if the server requires one.
        identity: Option<CertificateFiles>,
    },
    /// `GET` without TLS, on loopback. A response of 200 is success.
    Http {
        /// The address.
        address: SocketAddr,
        /// The path.
        path: String,
    },
    /// A line on a Unix socket of the pod. A response with the expected beginning is success.
    Socket {
        /// Relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`: one of [`Pod::data`], and a name in it.
        path: String,
        /// The line, without the newline.
        request: String,
        /// The expected beginning of the response.
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
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// The requests and limits of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResources {
    /// The CPU request, in thousandths of a core.
    pub cpu_request_millis: u32,
    /// The CPU limit, in thousandths of a core. `None`: no limit.
    pub cpu_limit_millis: Option<u32>,
    /// The memory limit, in bytes.
    pub memory_limit_bytes: u64,
}

/// Returns the content of a data directory's [`DATA_MARK`](super::DATA_MARK). It names the pod, so that data of another pod does not count.
#[must_use]
pub fn data_mark(pod: &PodName) -> String {
    format!("{pod}\n")
}

/// The identity of a config. Ordered by term, then by generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Applied {
    /// The driver's term.
    pub term: u64,
    /// The generation within the term.
    pub generation: u64,
    /// SHA-256 of the config's content.
    pub digest: String,
}

/// Bytes in JSON as base64, as Kubernetes writes them. A list of numbers would be three times as long.
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
