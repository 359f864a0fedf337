//! What a machine is to run ([`MachineConfig`]), what it reports ([`MachineState`]), and the names of what Keelway keeps there.

mod amount;
mod config;
mod digest;
pub mod event;
mod format;
mod hash;
mod replacement;
mod revision;
mod state;

pub use amount::{Amount, Disk};
pub use config::{
    Applied, CertificateFiles, Container, ContainerCheck, ContainerResources, DataRemoval, HaproxyServers, Liveness,
    MachineConfig, Mount, OnChange, Pod, PodFile, RemovalReason, Start, copy_name, data_mark, fetch_failure,
};
pub use digest::{PodDigests, config_digest};
pub use event::MachineEvent;
pub use format::{ConfigFormat, FormatRange};
pub use hash::{Digest, hex, sha256_hex};
pub use replacement::FILES;
pub use state::{
    AgentIdentity, CgroupDriver, ContainerPhase, ContainerState, DISK_RESERVE, DataState, DatabaseRoom, Figures,
    FileState, MachineState, ObservedValue, PortFacts, RuntimeFacts, SandboxState, ServerAdmin, ServerState,
    SystemFacts, UnreachableReason,
};

use crate::quantity::Memory;

/// The directory with everything of Keelway on a machine, as an absolute path on the machine.
pub const STATE_DIRECTORY: &str = "/var/lib/keelway";

/// The label of our sandboxes and containers that holds the cluster's id. Pods without it are never touched.
pub const CLUSTER_LABEL: &str = "keelway.dev/cluster-id";
/// The label that names the installation on each of its Secrets.
pub const INSTALLATION_LABEL: &str = "keelway.dev/installation-id";
/// The label of our sandboxes and containers that holds the component's name.
pub const COMPONENT_LABEL: &str = "keelway.dev/component";
/// The label of the pods of helpers, which earlier releases used on machines behind proxies.
pub const HELPER_LABEL: &str = "keelway.dev/helper";
/// The label of the pod of an agent that Keelway started, with the name of the machine.
pub const AGENT_LABEL: &str = "keelway.dev/agent";
/// The annotation of our sandboxes that holds [`PodDigests::replacement`]: a pod is replaced when it differs.
pub const DIGEST_ANNOTATION: &str = "keelway.dev/digest";

/// The stats socket of a haproxy, which reports and changes its servers while it runs, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`.
pub const STATS_SOCKET: &str = "run/admin.sock";
/// The database of an etcd member, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT` (`ToBackendFileName` of
/// `go.etcd.io/etcd/server/v3/storage/datadir`).
pub const ETCD_DATABASE: &str = "data/member/snap/db";
/// The default quota of an etcd member's database (`--quota-backend-bytes`), in bytes. It is twice etcd's default, and half of the maximum that
/// etcd's documentation suggests.
pub const ETCD_QUOTA: u64 = 4 << 30;
/// The socket with a gateway's metrics, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`.
pub const GATEWAY_METRICS: &str = "peers/metrics.sock";
/// [`PodFile::path`] of the certificate that the server of a pod shows, for [`ContainerCheck::Https`].
pub const SERVING_CERTIFICATE: &str = "server.crt";
/// The file in a data directory that shows that it was created for this pod, and not lost since: see [`Start`] and [`data_mark`].
pub const DATA_MARK: &str = "keelway-mark";

/// The directory in which the data of an etcd member is made from a snapshot, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`. It is removed
/// afterwards.
pub const RESTORE: &str = "restore";
/// Where [`RESTORE`] is inside the container that restores.
pub const RESTORE_MOUNT: &str = "/var/lib/etcd-restore";
/// The snapshot in [`RESTORE`], as `etcdctl snapshot save` stores it.
pub const RESTORED_SNAPSHOT: &str = "snapshot.db";
/// The directory in [`RESTORE`] that `etcdutl snapshot restore` creates.
pub const RESTORED_DATA: &str = "data";
/// The directory that etcd creates in its data directory (`ToMemberDir` of `go.etcd.io/etcd/server/v3/storage/datadir`).
pub const ETCD_MEMBER: &str = "member";

/// The label of our containers that holds [`Container::stop_seconds`]: a container that is removed gets this time to drain.
pub const STOP_LABEL: &str = "keelway.dev/stop-seconds";

/// The smallest quota. It holds the objects of a cluster without workers several times.
pub(crate) const SMALLEST_QUOTA: Memory = Memory::mebibytes(256);
