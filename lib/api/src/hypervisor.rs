//! `Hypervisor`: a machine that the user brings.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::machine::Applied;

use crate::{
    Newer, Time, condition,
    machine::{Amount, Disk, MachineState, sha256_hex},
    name::{ClusterId, ComponentName, HypervisorName, InstallationId},
};

/// The finalizer that keeps a deleted Hypervisor in a management cluster as long as its machine is in use.
pub const FINALIZER: &str = "keelway.dev/hypervisor";

/// The port of agents that Keelway starts, if the document names none.
pub const AGENT_PORT: u16 = 7443;

/// The CRI socket of containerd.
pub const RUNTIME_SOCKET: &str = "/run/containerd/containerd.sock";

/// The annotation of a lost machine, with the value `true`: Keelway gives up everything that the machine holds.
pub const LOST_ANNOTATION: &str = "keelway.dev/lost";

/// A physical or virtual machine on which Keelway runs components of control planes.
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
    /// The role of the machine: public ones run ingresses and gateways, private ones run etcd and the Kubernetes components.
    pub role: HypervisorRole,
    /// The endpoint through which Keelway reaches the machine: its agent or its container runtime.
    pub endpoint: HypervisorEndpoint,
    /// The addresses of the machine, by network.
    pub addresses: Addresses,
    /// The TCP and UDP ports that Keelway may use on the machine, both ends included. They must not overlap the machine's
    /// `ip_local_port_range`.
    #[serde(default)]
    pub port_range: PortRange,
    /// If true, no new component is placed on the machine, and its components stay, as with a Node. `keelway hypervisor cordon` sets
    /// it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unschedulable: bool,
    /// If true, the machine's components move to other machines, each once its replacement is ready, and no new component is placed on
    /// it. An etcd member moves once its replacement has copied the data. `keelway hypervisor drain` sets it.
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

/// The role of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum HypervisorRole {
    /// Runs ingresses and gateways. It has an address that users can reach, and one in the private network.
    Public,
    /// Runs etcd and the Kubernetes components. Only other hypervisors connect to it.
    Private,
}

/// The endpoint of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum HypervisorEndpoint {
    /// A CRI socket on the machine that runs `keelway`. The files and the network are those of the process that listens on it.
    #[serde(rename_all = "camelCase")]
    Unix {
        /// The absolute path of the socket.
        path: String,
    },
    /// The agent on the machine (`keelway-hypervisor-agent run`), which keeps components running on its own.
    Agent(AgentEndpoint),
    /// The machine's CRI socket behind your own proxy with mutual TLS. Keelway starts the agent there as a container, and then uses the
    /// agent. If the agent's container is gone, the next pass starts it again.
    Cri(CriEndpoint),
}

/// The endpoint of a CRI socket behind a proxy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CriEndpoint {
    /// The address of the proxy: `HOST:PORT`. The proxy forwards connections to the socket.
    pub address: String,
    /// The name in the proxy's certificate. The default is the host of `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// Your Secret beside the documents: the client certificate in `tls.crt` and `tls.key`, and the authority of the proxy's
    /// certificate in `ca.crt`.
    pub secret_ref: SecretReference,
    /// The address at which Keelway reaches the agent that it starts: `HOST:PORT`. The agent listens on this port of the first private
    /// address. The default is the first private address and port 7443.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_address: Option<String>,
    /// The absolute path of the CRI socket on the machine, which the agent uses.
    #[serde(default = "default_runtime_socket", skip_serializing_if = "is_default_runtime_socket")]
    pub runtime_socket: String,
}

fn default_runtime_socket() -> String {
    RUNTIME_SOCKET.to_owned()
}

fn is_default_runtime_socket(path: &str) -> bool {
    path == RUNTIME_SOCKET
}

impl CriEndpoint {
    /// Returns the name in the proxy's certificate.
    #[must_use]
    pub fn name(&self) -> &str {
        let host = || self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        let unbracketed = || host().trim_start_matches('[').trim_end_matches(']');
        self.server_name.as_deref().unwrap_or_else(unbracketed)
    }
}

/// A reference to a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretReference {
    /// The namespace of the Secret.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// The name of the Secret.
    pub name: String,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// The endpoint of a machine's agent: its socket, or its address on a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentEndpoint {
    /// The agent's socket on the machine that runs `keelway`. The machine's network is that of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<UnixSocket>,
    /// The network address of the agent: `HOST:PORT`. Its certificate is for `NAME.hypervisor.keelway` and signed by the installation's
    /// authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The name of a public Hypervisor that Keelway reaches directly. Its agent forwards connections to this agent, and cannot decrypt
    /// them. Use it for machines in a network to which `keelway` has no route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// If true, the agent does not listen, for example behind a NAT. It connects to the agent of `via` and waits there for calls
    /// (`keelway-hypervisor-agent run --connect`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub dials_out: bool,
}

/// A Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnixSocket {
    /// The absolute path of the socket.
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

    /// Returns the local socket of the machine, if it has one.
    #[must_use]
    pub fn socket(&self) -> Option<&str> {
        match self.way() {
            MachineTransport::Runtime(path) | MachineTransport::Agent(path) => Some(path),
            MachineTransport::Network(_) | MachineTransport::Cri(_) => None,
        }
    }

    /// Returns the network address of the machine's agent, if it listens on one.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        match self.way() {
            MachineTransport::Runtime(_) | MachineTransport::Agent(_) | MachineTransport::Cri(_) => None,
            MachineTransport::Network(AgentNetworkAddress { address, .. }) => address,
        }
    }

    /// Returns whether the machine's agent is reached over a network.
    #[must_use]
    pub fn is_on_network(&self) -> bool {
        matches!(self.way(), MachineTransport::Network(_) | MachineTransport::Cri(_))
    }

    /// Returns whether an agent applies the machine's config. Otherwise, passes do.
    #[must_use]
    pub fn has_agent(&self) -> bool {
        !matches!(self.way(), MachineTransport::Runtime(_))
    }

    /// Returns the proxy in front of the machine's CRI socket, through which Keelway starts the agent.
    #[must_use]
    pub fn cri(&self) -> Option<&CriEndpoint> {
        match self {
            Self::Cri(cri) => Some(cri),
            Self::Unix { .. } | Self::Agent(_) => None,
        }
    }

    /// Returns the transport to the machine. If the endpoint is empty, which no valid document has, the transport leads nowhere.
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

/// The transport to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineTransport<'a> {
    /// Its runtime's socket on this machine.
    Runtime(&'a str),
    /// Its agent's socket on this machine.
    Agent(&'a str),
    /// Its agent on a network.
    Network(AgentNetworkAddress<'a>),
    /// Its runtime's socket behind a proxy, and the agent that Keelway starts there.
    Cri(&'a CriEndpoint),
}

/// The network address of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentNetworkAddress<'a> {
    /// The address at which it listens: `HOST:PORT`. `None` if it waits at the agent of `via` for calls.
    pub address: Option<&'a str>,
    /// The machine whose agent forwards its connections.
    pub via: Option<&'a str>,
}

/// The name in the certificate of a machine's agent.
#[must_use]
pub fn agent_name(machine: &HypervisorName) -> String {
    format!("{machine}.hypervisor.keelway")
}

/// A second name in the certificates of all agents. An agent that waits for calls at another one verifies this name, and need not know
/// which machine it is.
pub const ANY_AGENT: &str = "hypervisor.keelway";

/// The addresses of a machine. They are lists, so that a machine can have both address families.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Addresses {
    /// The addresses in the network between hypervisors. At least one.
    #[serde(default)]
    pub private: Vec<String>,
    /// The addresses in the network of clusters' users. At least one for a public hypervisor, none for a private one.
    #[serde(default)]
    pub public: Vec<String>,
    /// The addresses on which ingresses listen, if the machine has no interface with its public addresses: the network translates
    /// each public address to one of these, as AWS, GCP and Azure do. At least one of each family of `public`. The default is the
    /// public addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bind: Vec<String>,
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
    /// Returns whether its deletion was requested.
    #[must_use]
    pub fn deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the address of the agent that Keelway starts on the machine, and the address on which that agent listens.
    #[must_use]
    pub fn started_agent(&self) -> Option<(String, SocketAddr)> {
        let cri = self.spec.endpoint.cri()?;
        let own: IpAddr = self.spec.addresses.private.first()?.parse().ok()?;
        let Some(address) = &cri.agent_address else {
            let listen = SocketAddr::new(own, AGENT_PORT);
            return Some((listen.to_string(), listen));
        };
        let port = address.rsplit_once(':')?.1.parse().ok()?;
        Some((address.clone(), SocketAddr::new(own, port)))
    }

    /// Returns whether it is marked as lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(LOST_ANNOTATION)).is_some_and(|value| value == "true")
    }
}

/// The recorded state of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HypervisorStatus {
    /// The installation to which the machine belongs. It is created with the first Hypervisor and equal in all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<InstallationId>,
    /// The last config that was recorded for the machine, before it was sent. If the machine holds a later one, the documents are
    /// stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued: Option<Applied>,
    /// The CPU and memory of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantities>,
    /// The CPU and memory that are available for components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<Quantities>,
    /// The file system of `/var/lib/keelway`, as of `lastHeartbeatTime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskQuantities>,
    /// The system of the machine, as in a Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// The last time when the machine responded. It is written when another field of the status changes or when the machine stops
    /// responding. `keelway reconcile` also writes it after five minutes, as for a Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// The last config that the machine applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// The enrollment of its agent on the network. It is empty if the agent's certificates are your own files, or if the agent is on no
    /// network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// The clusters that were deleted while the machine was lost (`keelway.dev/lost`), by id. If the machine returns, their components
    /// and data are removed from it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub abandoned: BTreeMap<ClusterId, AbandonedCluster>,
    /// `Ready`: the machine responds, obeys this installation and can run components. `Enrolled`: its agent has a certificate of this
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
    /// The cluster's namespace and name: `default/c1`.
    pub cluster: String,
    /// The etcd members that may have data on the machine, with etcd's ids. Only their data is removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<ComponentName, String>,
}

/// The enrollment of a machine's agent on the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentStatus {
    /// The id of the token with which the agent was enrolled, or will be. It is not secret.
    pub token: String,
    /// The number of certificates issued for that token: the first one, and one for each renewal. Their serial numbers are derived from
    /// the token's id and this number.
    pub certificates: u32,
    /// When the last observed certificate expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// Whether all of these certificates are revoked. If so, Keelway does not connect to the machine until its agent is enrolled again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub revoked: bool,
}

impl AgentStatus {
    /// Returns an agent that is to be enrolled with this token.
    #[must_use]
    pub fn new(token: String) -> Self {
        Self { token, certificates: 1, not_after: None, revoked: false }
    }

    /// Returns the serial number of the last issued certificate: 32 hexadecimal digits. It is known before the certificate is issued,
    /// so that a certificate whose response was lost can also be revoked.
    #[must_use]
    pub fn serial(&self) -> String {
        self.number(self.certificates)
    }

    /// Returns the serial numbers of all issued certificates.
    #[must_use]
    pub fn serials(&self) -> Vec<String> {
        (1..=self.certificates).map(|number| self.number(number)).collect()
    }

    /// Returns a positive number of fixed length (RFC 5280, 4.1.2.2).
    fn number(&self, certificate: u32) -> String {
        let digest = sha256_hex(format!("{}/{certificate}", self.token).as_bytes());
        format!("4{}", digest.get(..31).unwrap_or_default())
    }
}

/// Amounts of CPU and memory, as Kubernetes quantities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quantities {
    /// CPU in cores, such as `2`, or in thousandths of a core, such as `1900m`.
    pub cpu: String,
    /// Memory, such as `24065664Ki`.
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
    /// Returns the amount, or `None` if it is in another notation than Keelway's.
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
    /// Returns the file system, or `None` if it is in another notation than Keelway's.
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

/// A file system, in Kubernetes quantities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskQuantities {
    /// The size, such as `41152736Ki`.
    pub capacity: String,
    /// The free space.
    pub available: String,
}

impl From<Disk> for DiskQuantities {
    fn from(disk: Disk) -> Self {
        Self { capacity: kibibytes(disk.capacity_bytes), available: kibibytes(disk.available_bytes) }
    }
}

/// The system of a machine, with the fields of a Node's `nodeInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeInfo {
    /// The kernel version, as `uname -r` prints it.
    pub kernel_version: String,
    /// The distribution, from os-release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub os_image: String,
    /// The CPU architecture, such as `amd64` or `arm64`.
    pub architecture: String,
    /// The container runtime and its version, such as `containerd://2.4.2`.
    pub container_runtime_version: String,
    /// The version of the agent, if the machine has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
}

impl NodeInfo {
    /// Returns what a machine reported, or `None` if it reported nothing.
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
