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

/// Why the data of an etcd member is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RemovalReason {
    /// Its cluster is deleted.
    ClusterDeleted,
}

impl RemovalReason {
    /// Returns the reason, as written in documents and configs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterDeleted => "ClusterDeleted",
        }
    }
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
