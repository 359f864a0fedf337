//! `Hypervisor`: a machine that the user brings.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Newer, Time, condition,
    machine::{Amount, Disk, MachineState, sha256_hex},
    name::{ClusterId, ComponentName, HypervisorName, InstallationId},
};

/// The finalizer that keeps a deleted Hypervisor in a management cluster for as long as something relies on the machine.
pub const FINALIZER: &str = "keelway.dev/hypervisor";

/// The annotation by which a person says `true` of a machine that is lost for good: what it holds is given up.
pub const LOST_ANNOTATION: &str = "keelway.dev/lost";

/// A physical or virtual machine where Keelway runs control plane components, reached through its CRI endpoint.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "Hypervisor",
    status = "HypervisorStatus",
    shortname = "hv",
    category = "keelway",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HypervisorSpec {
    /// What the machine is for: the ingress of clusters, or their components.
    pub role: HypervisorRole,
    /// How it is reached: by its container runtime, or by the agent beside it.
    pub endpoint: HypervisorEndpoint,
    /// Its addresses, by network.
    pub addresses: Addresses,
    /// TCP and UDP ports that Keelway may use on it, both ends included. Must stay clear of the machine's `ip_local_port_range`.
    #[serde(default)]
    pub port_range: PortRange,
    /// No component is placed on it any more; those that are there stay. As with a Node: `keelway hypervisor cordon`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unschedulable: bool,
    /// Its components move to other machines, each once its replacement is ready; members of stores stay. Nothing is placed
    /// on it. `keelway hypervisor drain`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub drain: bool,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// What a machine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum HypervisorRole {
    /// Holds the ingress of clusters; has an address that their users reach, and one in the private network.
    Public,
    /// Holds etcd and the Kubernetes components; reached by other hypervisors and nobody else.
    Private,
}

/// How a machine is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum HypervisorEndpoint {
    /// A CRI socket on the machine that runs `keelway`. The machine's files and network are those of the process that listens on it.
    #[serde(rename_all = "camelCase")]
    Unix {
        /// Absolute path of the socket.
        path: String,
    },
    /// `keelway-hypervisor-agent run` on the machine, which keeps components running with nobody else's help.
    Agent(AgentEndpoint),
    /// The machine's CRI socket behind a proxy of yours that speaks mutual TLS. No agent: a helper container places files, and
    /// what dies is restarted by the next pass.
    Cri(CriEndpoint),
}

/// How a CRI socket behind a proxy is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CriEndpoint {
    /// Where the proxy listens: `HOST:PORT`. It passes bytes on to the socket.
    pub address: String,
    /// The name that the proxy's certificate is for. The host of `address` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// A Secret of yours beside the documents: `tls.crt` and `tls.key` to show, `ca.crt` to know the proxy by.
    pub secret_ref: SecretReference,
}

impl CriEndpoint {
    /// The name that the proxy's certificate is for.
    #[must_use]
    pub fn name(&self) -> &str {
        let host = || self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        let unbracketed = || host().trim_start_matches('[').trim_end_matches(']');
        self.server_name.as_deref().unwrap_or_else(unbracketed)
    }
}

/// A Secret, by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretReference {
    /// Its namespace.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Its name.
    pub name: String,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// How a machine's agent is reached: by its socket, or over a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentEndpoint {
    /// The agent's own socket on the machine that runs `keelway`. The machine's network is that of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<UnixSocket>,
    /// Where the agent listens on a network: `HOST:PORT`. It shows a certificate of the installation's authority for
    /// `NAME.hypervisor.keelway`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The name of a public Hypervisor that is reached directly: the way to this agent leads through that one's, which passes
    /// bytes and can read none of them. For machines in a network that `keelway` has no route to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The agent listens nowhere, as behind a NAT: it connects to that of `via` and waits there to be called
    /// (`keelway-hypervisor-agent run --connect`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub dials_out: bool,
}

/// A Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnixSocket {
    /// Absolute path of the socket.
    pub path: String,
}

impl HypervisorEndpoint {
    /// An agent's own socket.
    #[must_use]
    pub fn agent(path: String) -> Self {
        Self::Agent(AgentEndpoint { unix: Some(UnixSocket { path }), ..AgentEndpoint::default() })
    }

    /// An agent on a network, at `HOST:PORT`.
    #[must_use]
    pub fn network(address: String) -> Self {
        Self::Agent(AgentEndpoint { address: Some(address), ..AgentEndpoint::default() })
    }

    /// The socket on this machine behind which the machine is found, where there is one.
    #[must_use]
    pub fn socket(&self) -> Option<&str> {
        match self.way() {
            MachineTransport::Runtime(path) | MachineTransport::Agent(path) => Some(path),
            MachineTransport::Network(_) | MachineTransport::Cri(_) => None,
        }
    }

    /// Where the machine's agent listens on a network, where it does.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        match self.way() {
            MachineTransport::Runtime(_) | MachineTransport::Agent(_) | MachineTransport::Cri(_) => None,
            MachineTransport::Network(AgentNetworkAddress { address, .. }) => address,
        }
    }

    /// Whether the machine's agent is spoken with over a network.
    #[must_use]
    pub fn is_on_network(&self) -> bool {
        matches!(self.way(), MachineTransport::Network(_))
    }

    /// The way to the machine. One to nowhere where the endpoint names none, which no sound document does.
    #[must_use]
    pub fn way(&self) -> MachineTransport<'_> {
        match self {
            Self::Unix { path } => MachineTransport::Runtime(path),
            Self::Agent(AgentEndpoint { unix: Some(unix), .. }) => MachineTransport::Agent(&unix.path),
            Self::Agent(AgentEndpoint { unix: None, address, via, .. }) => {
                MachineTransport::Network(AgentNetworkAddress { address: address.as_deref(), via: via.as_deref() })
            }
            Self::Cri(cri) => MachineTransport::Cri(cri),
        }
    }
}

/// The way to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineTransport<'a> {
    /// Its runtime's socket on this machine.
    Runtime(&'a str),
    /// Its agent's socket on this machine.
    Agent(&'a str),
    /// Its agent on a network.
    Network(AgentNetworkAddress<'a>),
    /// Its runtime's socket behind a proxy.
    Cri(&'a CriEndpoint),
}

/// Where an agent is on a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentNetworkAddress<'a> {
    /// Where it listens: `HOST:PORT`. None where it waits at that of `via` to be called.
    pub address: Option<&'a str>,
    /// The machine whose agent passes on what is for it.
    pub via: Option<&'a str>,
}

/// The name in the certificate of a machine's agent.
#[must_use]
pub fn agent_name(machine: &HypervisorName) -> String {
    format!("{machine}.hypervisor.keelway")
}

/// The name that the certificates of all agents have beside their own: whoever waits at one need not know which machine's it is.
pub const ANY_AGENT: &str = "hypervisor.keelway";

/// Addresses of a machine. Lists, so that a machine may have both families.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Addresses {
    /// In the network between hypervisors. At least one.
    #[serde(default)]
    pub private: Vec<String>,
    /// In the network that users of clusters reach. At least one for a public hypervisor, none for a private one.
    #[serde(default)]
    pub public: Vec<String>,
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    /// The first port.
    #[schemars(range(min = 1, max = 65535))]
    pub from: u16,
    /// The last port.
    #[schemars(range(min = 1, max = 65535))]
    pub to: u16,
}

impl Default for PortRange {
    /// Below Linux' default `ip_local_port_range` (32768 to 60999) and clear of Kubernetes' NodePorts (30000 to 32767).
    fn default() -> Self {
        Self { from: 20000, to: 22767 }
    }
}

impl Hypervisor {
    /// Whether somebody asked for its deletion.
    #[must_use]
    pub fn deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether a person says that it is lost for good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(LOST_ANNOTATION)).is_some_and(|value| value == "true")
    }
}

/// What Keelway recorded of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HypervisorStatus {
    /// The owner of this set of machines; minted with the first Hypervisor, the same in all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<InstallationId>,
    /// The last config that was written down for the machine, before the machine took it. A machine that holds a later one
    /// tells that these documents are stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued: Option<Applied>,
    /// What the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantities>,
    /// What of it may be given to components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<Quantities>,
    /// The file system below `/var/lib/keelway`, as of `lastHeartbeatTime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskQuantities>,
    /// What the machine is, as with a Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// When the machine answered last. Written anew when something else of it changes and when it goes silent; by `keelway reconcile`
    /// also after five minutes, as with a Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// The last config that the machine took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// Who its agent is on its network. None: its certificates are files that somebody else keeps, or it is on none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// Clusters that were deleted while the machine was lost (`keelway.dev/lost`), by id. If the machine returns, what it holds of them is
    /// removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub abandoned: BTreeMap<ClusterId, AbandonedCluster>,
    /// `Ready`: the machine answers, obeys this installation and can run components. `Enrolled`: its agent has a certificate of this
    /// installation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// A cluster that was deleted while a machine was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AbandonedCluster {
    /// Its namespace and name: `default/c1`.
    pub cluster: String,
    /// The etcd members that may have data on the machine, with etcd's ids. The data of no other member is removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<ComponentName, String>,
}

/// Who the agent of a machine is on its network, by the token that it was enrolled with or is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentStatus {
    /// The token's id, which is no secret.
    pub token: String,
    /// How many certificates it was granted with that token: the first, and one for each renewal. Their serial numbers follow from
    /// both.
    pub certificates: u32,
    /// When the last that was seen ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// Whether all of them are revoked. The machine is not reached from then on, until it is enrolled again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub revoked: bool,
}

impl AgentStatus {
    /// To be enrolled with this token.
    #[must_use]
    pub fn new(token: String) -> Self {
        Self { token, certificates: 1, not_after: None, revoked: false }
    }

    /// The serial number of the last certificate that was granted: 32 hexadecimal digits. It is known before the certificate is made,
    /// so that one whose answer was lost can be revoked, too.
    #[must_use]
    pub fn serial(&self) -> String {
        self.number(self.certificates)
    }

    /// The serial numbers of all that were granted.
    #[must_use]
    pub fn serials(&self) -> Vec<String> {
        (1..=self.certificates).map(|number| self.number(number)).collect()
    }

    /// Positive, and always as long (RFC 5280, 4.1.2.2).
    fn number(&self, certificate: u32) -> String {
        let digest = sha256_hex(format!("{}/{certificate}", self.token).as_bytes());
        format!("4{}", digest.get(..31).unwrap_or_default())
    }
}

/// Amounts as Kubernetes writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quantities {
    /// Cores: `2`, or thousandths of one: `1900m`.
    pub cpu: String,
    /// `24065664Ki`.
    pub memory: String,
}

impl From<Amount> for Quantities {
    fn from(amount: Amount) -> Self {
        let cpu = match amount.cpu_millis {
            whole if whole % 1000 == 0 => (whole / 1000).to_string(),
            millis => format!("{millis}m"),
        };
        Self { cpu, memory: kibibytes(amount.memory_bytes) }
    }
}

impl Quantities {
    /// The amount; nothing where somebody wrote it otherwise than Keelway does.
    #[must_use]
    pub fn amount(&self) -> Option<Amount> {
        let cpu_millis = match self.cpu.strip_suffix('m') {
            Some(millis) => millis.parse().ok()?,
            None => self.cpu.parse::<u64>().ok()?.checked_mul(1000)?,
        };
        Some(Amount { cpu_millis, memory_bytes: bytes(&self.memory)? })
    }
}

impl DiskQuantities {
    /// The file system; nothing where somebody wrote it otherwise than Keelway does.
    #[must_use]
    pub fn disk(&self) -> Option<Disk> {
        Some(Disk { capacity_bytes: bytes(&self.capacity)?, available_bytes: bytes(&self.available)? })
    }
}

fn bytes(text: &str) -> Option<u64> {
    text.strip_suffix("Ki")?.parse::<u64>().ok()?.checked_mul(1024)
}

fn kibibytes(bytes: u64) -> String {
    format!("{}Ki", bytes >> 10)
}

/// A file system, in amounts as Kubernetes writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskQuantities {
    /// How large it is: `41152736Ki`.
    pub capacity: String,
    /// What may still be written.
    pub available: String,
}

impl From<Disk> for DiskQuantities {
    fn from(disk: Disk) -> Self {
        Self { capacity: kibibytes(disk.capacity_bytes), available: kibibytes(disk.available_bytes) }
    }
}

/// What a machine is, in the words of a Node's `nodeInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeInfo {
    /// As `uname -r` says it.
    pub kernel_version: String,
    /// Its distribution, from os-release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub os_image: String,
    /// `amd64`, `arm64`, ..
    pub architecture: String,
    /// `containerd://2.4.2`.
    pub container_runtime_version: String,
    /// The version of its agent, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
}

impl NodeInfo {
    /// What a machine told; nothing where it does not tell.
    #[must_use]
    pub fn of(state: &MachineState) -> Option<Self> {
        let system = state.system.clone()?;
        let runtime = &state.runtime;
        Some(Self {
            kernel_version: system.kernel_version,
            os_image: system.os_image,
            architecture: system.architecture,
            container_runtime_version: format!("{}://{}", runtime.name, runtime.version.trim_start_matches('v')),
            agent_version: system.agent_version,
        })
    }
}

/// Which config a machine holds. Ordered by term, then generation.
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
