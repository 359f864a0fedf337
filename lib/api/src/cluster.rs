//! `Cluster`: one whole Kubernetes cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::machine::RemovalReason;

use crate::{
    Newer,
    class_status::ClassStatus,
    condition,
    duration::Span,
    membership::{MemberStart, MembershipChange},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName},
    preflight::UpgradeSpec,
    quantity::{Cpu, Memory},
    release::KEELWAY_UNRECORDED,
    restore::RestoreSpec,
    role::Role,
    rotation::{RotationsSpec, RotationsStatus},
    sleep::SleepStatus,
    snapshots::{SnapshotsSpec, SnapshotsStatus},
    store_rebuild::{EtcdRecovery, QuorumRecovery, RebuiltStore, StoreRebuild},
    store_space::StoreSpace,
};

/// The MTU of the VPN of new clusters. Its packets pass every network with an MTU of 1360 or more, without fragments.
pub const VPN_MTU: u16 = 1280;
/// The MTU of the VPN of clusters that v0.1.0 created, and of programs to which none is configured.
pub const VPN_MTU_UNRECORDED: u16 = 1420;
/// The finalizer that keeps a deleted Cluster until its machines are clean.
pub const FINALIZER: &str = "keelway.dev/cluster";

/// A Kubernetes cluster: its certificate authorities, its components, its ingress.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "Cluster",
    namespaced,
    status = "ClusterStatus",
    shortname = "kwc",
    category = "keelway",
    derive = "PartialEq",
    scale(spec_replicas_path = ".spec.controlPlane.replicas", status_replicas_path = ".status.replicas")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterSpec {
    /// The name of its ClusterClass. If it is empty, the cluster keeps its previous class, or else gets the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// The Kubernetes release: a patch release of 1.34, 1.35, 1.36 or 1.37, such as 1.37.0. A later one upgrades the
    /// components one after the other, minor version by minor version. See docs/upgrades.md.
    pub version: String,
    /// If it is set, the cluster is a fleet: one Kubernetes API over many clusters. A fleet has no workers, gateways,
    /// egresses, add-ons, schedulers and cluster-controllers. It stores what users apply, and its fleet-controllers
    /// place it in workload clusters. It can neither be added to a cluster nor be removed from it. See docs/fleet.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetSpec>,
    /// The etcd of the cluster.
    #[serde(default)]
    pub etcd: EtcdSpec,
    /// The Kubernetes components.
    #[serde(default)]
    pub control_plane: ControlPlaneSpec,
    /// The ingresses: haproxy on public hypervisors.
    #[serde(default)]
    pub ingress: IngressSpec,
    /// The endpoint of the API for users.
    #[serde(default)]
    pub endpoint: EndpointSpec,
    /// The IP ranges inside the cluster.
    #[serde(default)]
    pub network: NetworkSpec,
    /// The WireGuard network between the control plane and its workers.
    #[serde(default)]
    pub vpn: VpnSpec,
    /// The registry of images and its credentials.
    #[serde(default)]
    pub images: ImagesSpec,
    /// The lifetimes of certificates.
    #[serde(default)]
    pub certificates: CertificatesSpec,
    /// Requests to rotate keys of the cluster while it runs. See docs/rotation.md.
    #[serde(default, skip_serializing_if = "RotationsSpec::is_empty")]
    pub rotations: RotationsSpec,
    /// How the cluster is upgraded to another release of Kubernetes. See docs/upgrades.md.
    #[serde(default, skip_serializing_if = "UpgradeSpec::is_default")]
    pub upgrade: UpgradeSpec,
    /// The kubelets of the cluster's workers.
    #[serde(default, skip_serializing_if = "WorkersSpec::is_default")]
    pub workers: WorkersSpec,
    /// The add-ons that Keelway manages in the cluster for its workers.
    #[serde(default)]
    pub addons: AddonsSpec,
    /// If true, Keelway does not reconcile the cluster: it changes, deletes and renews nothing, certificates
    /// included. Running components continue.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paused: bool,
    /// If true, the cluster sleeps: its components are stopped, and its API answers 503. Data, placements, ports,
    /// addresses and keys stay, and pods on workers continue. `keelway cluster sleep` and `keelway cluster wake` set it.
    /// See docs/sleep.md.
    #[serde(default, skip_serializing_if = "is_false")]
    pub asleep: bool,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// The settings of a fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FleetSpec {}

/// The kubelets of a cluster's workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkersSpec {
    /// The Kubernetes release of the kubelets, such as 1.37.0. Once every component of the control plane runs `spec.version`,
    /// or at least this minor version if it is an earlier one, the workers upgrade themselves in turn: each drains its Node,
    /// replaces the kubelet, and uncordons the Node. Without it, kubelets stay as they are until `keelway node upgrade`. See
    /// docs/upgrades.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The highest number of workers that are not ready or upgrade at a time.
    #[serde(default = "one_worker")]
    pub max_unavailable: u32,
    /// How long pods of a worker may take to terminate before its upgrade. If they take longer, the worker continues with
    /// the previous kubelet, and tries again.
    #[serde(default = "drain_timeout")]
    pub drain_timeout: Span,
}

fn one_worker() -> u32 {
    1
}

fn drain_timeout() -> Span {
    Span::minutes(5)
}

impl Default for WorkersSpec {
    fn default() -> Self {
        Self { version: None, max_unavailable: one_worker(), drain_timeout: drain_timeout() }
    }
}

impl WorkersSpec {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The progress of a cluster's first start. A field that is true stays true, as in the
/// [contract](https://cluster-api.sigs.k8s.io/developer/providers/contracts/control-plane) of Cluster API's control
/// planes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Initialization {
    /// Whether an API server has ever been ready. Controller managers and schedulers start only after that.
    #[serde(default)]
    pub control_plane_initialized: bool,
}

/// The release of Keelway's components of a cluster: gateways, egresses and cluster-controllers, or fleet-controllers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeelwayStatus {
    /// The tag of their image. A new cluster starts with the release of its driver. An existing cluster is upgraded
    /// to it in its wave.
    pub version: String,
    /// The previous release. If it is empty, the cluster was created with the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_version: Option<String>,
}

/// The etcd of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdSpec {
    /// The number of members: 1, 3, 5 or 7. An even number tolerates no more failures than the odd number below it. A
    /// change adds or removes one member after the other.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 7))]
    pub replicas: u32,
    /// How long a member's machine may be unreachable before another member replaces it. The default is 10m. Members
    /// are replaced only while the others have a majority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_after: Option<Span>,
    /// What Keelway does after a majority of the members was lost for good. `Manual`: it waits for `recoverQuorum`.
    /// `Automatic`: it rebuilds the store from the remaining member with the newest data, as soon as the members that do
    /// not respond cannot have a majority elsewhere. See docs/etcd-members.md.
    #[serde(default, skip_serializing_if = "EtcdRecovery::is_manual")]
    pub recovery: EtcdRecovery,
    /// A request to rebuild the store from its remaining members. `keelway cluster recover-quorum` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover_quorum: Option<QuorumRecovery>,
    /// The maximum size of each member's database, from 256Mi to 8Gi. The default is 4Gi. A full database rejects
    /// writes. A change replaces the members one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Memory>,
    /// The resource limits of each member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
    /// Snapshots of the database: sealed to a key of the cluster, and stored outside of it. If it is empty, none are
    /// taken. See docs/backup.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsSpec>,
    /// A request to make the data from a snapshot. `keelway cluster restore` and `keelway cluster inject
    /// --from-snapshot` set it. See docs/backup.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreSpec>,
}

/// The resources of a component, like those of a container of a Pod. A change replaces the components one after the
/// other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComponentResources {
    /// The maximum amounts that it may use.
    #[serde(default)]
    pub limits: ComponentLimits,
}

/// The maximum amounts that a component may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComponentLimits {
    /// The maximum CPU, such as `2`, or `500m` for half a core. Beyond it, the component is throttled. The default is
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// The maximum memory, such as `4Gi`. Beyond it, the component is killed and restarted. docs/operations.md lists
    /// the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// The Kubernetes components of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlPlaneSpec {
    /// The replicas of each role that does not set its own number.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: u32,
    /// The API servers.
    #[serde(default, rename = "kubeAPIServer")]
    pub kube_api_server: ApiServerSpec,
    /// The controller managers.
    #[serde(default)]
    pub kube_controller_manager: ReplicasSpec,
    /// The schedulers.
    #[serde(default)]
    pub kube_scheduler: ReplicasSpec,
    /// The cluster-controllers, which work inside the cluster for its workers.
    #[serde(default)]
    pub cluster_controller: ClusterControllerSpec,
}

/// The cluster-controllers of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterControllerSpec {
    /// The number of replicas. The default is 2, or 1 with a single API server. One of them is active, the others
    /// stand by. With 0, no worker can join. A fleet, and a cluster without a VPN or an ingress, have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9))]
    pub replicas: Option<u32>,
    /// The resource limits of each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
}

/// The API servers of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiServerSpec {
    /// The number of replicas. The default is `spec.controlPlane.replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: Option<u32>,
    /// Additional names and addresses in the serving certificate.
    #[serde(default, rename = "extraSANs", skip_serializing_if = "Vec::is_empty")]
    pub extra_sans: Vec<String>,
    /// Additional arguments of the program, by name without dashes. docs/arguments.md lists those that are allowed. A
    /// change replaces the components.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// The resource limits of each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
}

/// Replicas of one role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicasSpec {
    /// The number of replicas. The default is `spec.controlPlane.replicas`. 0 runs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9))]
    pub replicas: Option<u32>,
    /// Additional arguments of the program, by name without dashes. docs/arguments.md lists those that are allowed. A
    /// change replaces the components.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// The resource limits of each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
}

/// haproxy in front of the API servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressSpec {
    /// The number of ingresses, each on a public hypervisor of its own. With 0, only other hypervisors can reach the
    /// API.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 9))]
    pub replicas: u32,
    /// The port of the ingresses, in TCP for the API and in UDP for the VPN, such as 443 for workers in networks that
    /// allow no other port. By default, Keelway chooses a port from `spec.portRange` of the public hypervisors. It is
    /// immutable once `status.ingressPort` is set. For a port below 1024, set the kernel setting
    /// `net.ipv4.ip_unprivileged_port_start` of each public hypervisor to that port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
}

/// The endpoint of the API for users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointSpec {
    /// Your own DNS name for all ingresses. Certificates and kubeconfigs contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// The IP ranges inside the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// The ranges of pods, at most one per address family.
    #[serde(default = "pod_cidrs", rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    /// The ranges of Services, at most one per address family.
    #[serde(default = "service_cidrs", rename = "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
    /// The DNS domain of the cluster.
    #[serde(default = "dns_domain")]
    pub dns_domain: String,
}

/// The WireGuard network between the control plane and its workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VpnSpec {
    /// Whether the cluster has a VPN: a gateway beside each ingress, through which workers and API servers connect to
    /// each other, and an egress beside each API server. Without it, no worker can join. A fleet has none.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The ranges of workers, at most one per address family. The first address of each range belongs to the API and
    /// is in its serving certificates.
    #[serde(default = "vpn_cidrs")]
    pub cidrs: Vec<String>,
    /// The largest packet inside the VPN, in bytes: from 1280 to 1420, or from 1200 in a cluster without ranges of
    /// IPv6. A packet on the way to a gateway is up to 80 bytes larger. The default is 1280, or 1420 in a cluster
    /// that v0.1.0 created. A change replaces the gateways one after the other, and workers adopt it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1200, max = 1420))]
    pub mtu: Option<u16>,
}

/// The registry of images and its credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagesSpec {
    /// A registry, with an optional path, that serves every image under its original name and tag, such as
    /// `registry.example.com/mirror`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// Images to use in place of those with the same name and tag, each with its digest:
    /// `REGISTRY/NAME:TAG@sha256:DIGEST`. The first that has the name and tag of an image counts. A tag belongs to a
    /// release, so an override has no effect on other releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// Secrets of the type `kubernetes.io/dockerconfigjson` in the cluster's namespace with registry credentials,
    /// like `imagePullSecrets` of a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<LocalSecretReference>,
}

/// A Secret in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LocalSecretReference {
    /// The name of the Secret.
    pub name: String,
}

/// The lifetimes of certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CertificatesSpec {
    /// The maximum lifetime of components' certificates. Each certificate is valid for two thirds of it or longer, so
    /// that those of replicas do not expire together.
    #[serde(default = "component_ttl", rename = "componentTTL")]
    pub component_ttl: Span,
    /// The lifetime of workers' certificates. The address of a worker that left is reserved for the same time. In a
    /// fleet, the maximum lifetime of the certificates of fleet agents.
    #[serde(default = "worker_ttl", rename = "workerTTL")]
    pub worker_ttl: Span,
    /// How long after the end of its certificate a worker that was away can renew it with the key of that certificate.
    /// After that, or with `0s`, it has to join again with a token.
    #[serde(default = "worker_grace")]
    pub worker_grace: Span,
    /// The lifetime of certificates in kubeconfigs of administrators.
    #[serde(default = "admin_ttl", rename = "adminTTL")]
    pub admin_ttl: Span,
    /// The lifetime of certificate authorities.
    #[serde(default = "authority_ttl", rename = "authorityTTL")]
    pub authority_ttl: Span,
    /// How long a rotation of the kubernetes authority waits for a worker that is away, or for the agent of a fleet, in each
    /// phase. A worker that returns later has to join again with a token, and an agent needs another token.
    #[serde(default = "rotation_deadline")]
    pub rotation_deadline: Span,
}

/// The add-ons that Keelway manages in a cluster for its workers. A disabled add-on is deleted from the cluster;
/// nothing else is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddonsSpec {
    /// CoreDNS, the cluster's DNS. If you deploy another DNS, its Service must have the address that workers query:
    /// the tenth of the first range of Services.
    #[serde(default, rename = "coreDNS")]
    pub core_dns: AddonSpec,
    /// kube-proxy on every worker, which implements Services.
    #[serde(default)]
    pub kube_proxy: KubeProxySpec,
    /// metrics-server, for `kubectl top` and autoscaling.
    #[serde(default)]
    pub metrics_server: AddonSpec,
    /// The default CNI configuration. If it is disabled, workers write none, and become ready when you install
    /// another one.
    #[serde(default)]
    pub cni: AddonSpec,
}

/// kube-proxy on every worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KubeProxySpec {
    /// Whether Keelway installs it.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The addresses of a worker at which NodePorts are served: ranges in CIDR notation, or primary alone, which stands
    /// for the worker's addresses in the VPN. Each address family of Services needs a range. By default, all addresses.
    #[serde(default = "all_addresses", skip_serializing_if = "are_all_addresses")]
    pub node_port_addresses: Vec<String>,
}

/// What `nodePortAddresses` has in place of ranges, for the addresses of the Node object.
pub const PRIMARY_ADDRESSES: &str = "primary";

/// An add-on that Keelway manages in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddonSpec {
    /// Whether Keelway installs it.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn one() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn all_addresses() -> Vec<String> {
    ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec()
}
fn are_all_addresses(ranges: &[String]) -> bool {
    ranges == all_addresses()
}
fn pod_cidrs() -> Vec<String> {
    vec!["10.244.0.0/16".to_owned()]
}
fn service_cidrs() -> Vec<String> {
    vec!["10.96.0.0/16".to_owned()]
}
/// Part of the range for tests of network devices (RFC 2544), which is not routed on the internet, and which few networks use.
fn vpn_cidrs() -> Vec<String> {
    vec!["198.19.128.0/18".to_owned()]
}
fn dns_domain() -> String {
    "cluster.local".to_owned()
}
fn component_ttl() -> Span {
    Span::hours(8760)
}
fn worker_ttl() -> Span {
    Span::hours(720)
}
fn worker_grace() -> Span {
    Span::hours(2160)
}
fn admin_ttl() -> Span {
    Span::hours(24)
}
fn authority_ttl() -> Span {
    Span::hours(87600)
}
fn rotation_deadline() -> Span {
    Span::hours(168)
}

impl Default for EtcdSpec {
    fn default() -> Self {
        Self {
            replicas: one(),
            replace_after: None,
            recovery: EtcdRecovery::Manual,
            recover_quorum: None,
            quota: None,
            resources: None,
            snapshots: None,
            restore: None,
        }
    }
}

impl Default for ControlPlaneSpec {
    fn default() -> Self {
        Self {
            replicas: one(),
            kube_api_server: ApiServerSpec::default(),
            kube_controller_manager: ReplicasSpec::default(),
            kube_scheduler: ReplicasSpec::default(),
            cluster_controller: ClusterControllerSpec::default(),
        }
    }
}

impl Default for IngressSpec {
    fn default() -> Self {
        Self { replicas: one(), port: None }
    }
}

impl Default for NetworkSpec {
    fn default() -> Self {
        Self { pod_cidrs: pod_cidrs(), service_cidrs: service_cidrs(), dns_domain: dns_domain() }
    }
}

impl Default for VpnSpec {
    fn default() -> Self {
        Self { enabled: yes(), cidrs: vpn_cidrs(), mtu: None }
    }
}

impl Default for KubeProxySpec {
    fn default() -> Self {
        Self { enabled: yes(), node_port_addresses: all_addresses() }
    }
}

impl Default for AddonSpec {
    fn default() -> Self {
        Self { enabled: yes() }
    }
}

impl Default for CertificatesSpec {
    fn default() -> Self {
        Self {
            component_ttl: component_ttl(),
            worker_ttl: worker_ttl(),
            worker_grace: worker_grace(),
            admin_ttl: admin_ttl(),
            authority_ttl: authority_ttl(),
            rotation_deadline: rotation_deadline(),
        }
    }
}

/// The recorded state of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterStatus {
    /// The cluster's id. It is random, and saved before the cluster is created on any machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ClusterId>,
    /// The `metadata.generation` that the conditions are about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The Kubernetes release that every component runs. During an upgrade, it is the previous one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The port of the API on every public hypervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_port: Option<u16>,
    /// The values that its ClusterClass last set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassStatus>,
    /// The current number of API servers, including those that are being removed. `kubectl scale` uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// The URLs of the API for users: `https://HOST:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// The Secrets with its authorities and keys, which are created once, by name, each with a digest of its
    /// identity. If one is missing or differs, the cluster is `Blocked`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub minted: BTreeMap<String, String>,
    /// The last rotation of each key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotations: Option<RotationsStatus>,
    /// The settings that never change after the cluster's creation. They are recorded with its first etcd members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth: Option<ClusterBirth>,
    /// The creation and the members of its etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdStatus>,
    /// The progress of the cluster's first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// Its sleep. If it is empty, the cluster is awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepStatus>,
    /// The release of Keelway's components of the cluster: gateways, egresses and cluster-controllers, or, in a
    /// fleet, fleet-controllers. If it is empty, the release is v0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keelway: Option<KeelwayStatus>,
    /// `Available`: the API serves through every ingress. `Progressing`: the cluster is changing to match its
    /// document; `False` if it matches (`Settled`) or cannot continue (`Blocked`). `Degraded`: a component is not
    /// ready. `Paused`: `spec.paused` is true. `Asleep`: the cluster sleeps; `False` while it falls
    /// asleep or wakes up. `EtcdMembersHealthy`: `False` if etcd has lost its majority or is rebuilt, or if a member is
    /// corrupt, lags, or differs from the documents. `EtcdHasRoom`: `False` if etcd is near its quota, or out of space.
    /// `EtcdBackedUp`: `False` if the last snapshot could not be taken. `KubernetesUpToDate`: `False` while components
    /// are changed to `spec.version`. `KeysRotating`: a key is being rotated. docs/reasons.md lists all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// The etcd of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdStatus {
    /// When the first members were recorded, before their first start. It is set once per cluster.
    pub born_at: Time,
    /// The members of the static initial cluster, by name, each with its peer URLs.
    pub initial_cluster: BTreeMap<ComponentName, Vec<String>>,
    /// etcd's id of the cluster of these members, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The current members, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<ComponentName, EtcdMember>,
    /// The last snapshot, and what failed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsStatus>,
    /// The number of the next member. The names of earlier members are never used again. If it is empty, no member was
    /// added since the cluster's creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_index: Option<u32>,
    /// The change of its members that is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<MembershipChange>,
    /// Since when no majority of the members works, as observed. It is empty while one does, and while the store is
    /// rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum_lost_since: Option<Time>,
    /// The rebuild from one member that is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<StoreRebuild>,
    /// The last rebuild from one member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<RebuiltStore>,
    /// How Keelway freed space in the databases. If it is empty, it never had to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<StoreSpace>,
}

/// An etcd member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdMember {
    /// etcd's id of the member, in hexadecimal digits.
    pub id: String,
    /// The phase of the member. It never returns to an earlier one.
    pub phase: MemberPhase,
    /// The order to remove its data. Without this order, no machine removes the data of a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<RemovalReason>,
    /// The machine that removes its data, if the store has removed the member. The member stays in this list until that
    /// machine is observed without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_from: Option<HypervisorName>,
    /// The arguments of its first start. If it is empty, the member started with `initialCluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_with: Option<MemberStart>,
    /// Since when its machine does not respond, or its data is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_since: Option<Time>,
}

/// How long a member's machine may be unreachable before another member replaces it, if the spec does not set it.
const REPLACE_AFTER: Span = Span::minutes(10);

impl EtcdSpec {
    /// How long a member's machine may be unreachable before another member replaces it.
    #[must_use]
    pub fn replaces_after(&self) -> Span {
        self.replace_after.unwrap_or(REPLACE_AFTER)
    }
}

impl EtcdMember {
    /// A member that may not start yet.
    #[must_use]
    pub fn pending(id: String) -> Self {
        let phase = MemberPhase::Pending;
        Self { id, phase, removal: None, removed_from: None, started_with: None, unavailable_since: None }
    }

    /// Returns whether the store has removed it.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed_from.is_some()
    }
}

impl EtcdStatus {
    /// The peer URLs of a member. None: the member is not recorded.
    #[must_use]
    pub fn peer_urls(&self, name: &ComponentName) -> Option<&[String]> {
        let started_with = self.members.get(name).and_then(|member| member.started_with.as_ref());
        let all = started_with.map_or(&self.initial_cluster, |start| &start.initial_cluster);
        all.get(name).map(Vec::as_slice)
    }

    /// The current members without those that the store has removed.
    pub fn staying_members(&self) -> impl Iterator<Item = (&ComponentName, &EtcdMember)> {
        self.members.iter().filter(|(_, member)| !member.is_removed())
    }
}

/// The phase of an etcd member. It distinguishes a member that lost its data from one that never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum MemberPhase {
    /// The member has never been allowed to start. Its machine creates its data directory.
    Pending,
    /// Its data directory has been observed with its mark. It may start on that directory only.
    Marked,
    /// The member has been observed running, and an API server that stores its objects there has been ready. It
    /// starts on its data only.
    Started,
}

impl Cluster {
    /// Its name and namespace.
    #[must_use]
    pub fn reference(&self) -> ClusterRef {
        ClusterRef {
            namespace: self.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned()),
            name: self.metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Its id, once it has one.
    #[must_use]
    pub fn id(&self) -> Option<&ClusterId> {
        self.status.as_ref()?.id.as_ref()
    }

    /// Returns whether its deletion was requested.
    #[must_use]
    pub fn deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the release of Keelway's components of the cluster.
    #[must_use]
    pub fn keelway_version(&self) -> &str {
        let keelway = self.status.as_ref().and_then(|status| status.keelway.as_ref());
        keelway.map_or(KEELWAY_UNRECORDED, |keelway| &keelway.version)
    }

    /// Returns the MTU of its VPN. A cluster that v0.1.0 created keeps the MTU of that release, because an overlay of its own may rely on it.
    #[must_use]
    pub fn vpn_mtu(&self) -> u16 {
        let status = self.status.as_ref();
        let birth = status.and_then(|status| status.birth.as_ref());
        let is_created = status.is_some_and(|status| status.etcd.is_some());
        let default = birth.and_then(|birth| birth.vpn.mtu);
        let default = default.unwrap_or(if is_created { VPN_MTU_UNRECORDED } else { VPN_MTU });
        self.spec.vpn.mtu.unwrap_or(default)
    }

    /// Returns whether one of its API servers has ever been ready.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        let initialization = self.status.as_ref().and_then(|status| status.initialization.as_ref());
        initialization.is_some_and(|initialization| initialization.control_plane_initialized)
    }
}

impl ClusterSpec {
    /// Returns whether the cluster is a fleet.
    #[must_use]
    pub fn is_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    /// Returns the desired number of components of this role.
    #[must_use]
    pub fn replicas(&self, role: Role) -> u32 {
        let plane = &self.control_plane;
        match role {
            Role::Etcd => self.etcd.replicas,
            Role::KubeApiserver => plane.kube_api_server.replicas.unwrap_or(plane.replicas),
            Role::KubeControllerManager => plane.kube_controller_manager.replicas.unwrap_or(plane.replicas),
            Role::KubeScheduler if self.is_fleet() => 0,
            Role::KubeScheduler => plane.kube_scheduler.replicas.unwrap_or(plane.replicas),
            Role::ClusterController if !self.takes_workers() => 0,
            Role::ClusterController => plane.cluster_controller.replicas.unwrap_or_else(|| self.leader_and_standby()),
            Role::FleetController if self.is_fleet() => self.leader_and_standby(),
            Role::FleetController => 0,
            Role::Gateway if !self.has_vpn() => 0,
            Role::Ingress | Role::Gateway => self.ingress.replicas,
        }
    }

    /// The replicas of a controller of which one is active: with a single API server, a second one adds no availability.
    fn leader_and_standby(&self) -> u32 {
        self.replicas(Role::KubeApiserver).min(2)
    }

    /// Returns whether it has a network for workers. A fleet has none, whatever `spec.vpn.enabled` is.
    #[must_use]
    pub fn has_vpn(&self) -> bool {
        self.vpn.enabled && !self.is_fleet()
    }

    /// Returns whether workers can join it.
    #[must_use]
    pub fn takes_workers(&self) -> bool {
        self.has_vpn() && self.ingress.replicas > 0
    }
}

/// What a cluster was born with, and keeps for its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterBirth {
    /// The ranges of pods and Services, and the DNS domain.
    pub network: NetworkSpec,
    /// The VPN of its workers.
    pub vpn: VpnBirth,
    /// The issuer of the tokens of its service accounts.
    pub service_account_issuer: String,
    /// Whether the cluster is the control plane of a fleet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fleet: bool,
}

/// What the network for a cluster's workers was born with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VpnBirth {
    /// The ranges of workers.
    pub cidrs: Vec<String>,
    /// The MTU if the spec names none. If it is empty, v0.1.0 created the cluster, and the MTU is 1420.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}
