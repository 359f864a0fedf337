//! `Cluster`: one whole Kubernetes cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Newer,
    change::ClusterBirth,
    class::ClassStatus,
    condition,
    duration::Span,
    name::{ClusterId, ClusterRef, ComponentName},
    quantity::{Cpu, Memory},
    release::KEELWAY_UNRECORDED,
    role::Role,
};

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
    /// The name of its ClusterClass. Where there are classes and it names none, it is of the one that is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// The Kubernetes release: 1.34.4, 1.35.4, 1.36.3 or 1.37.0.
    pub version: String,
    /// The store.
    #[serde(default)]
    pub etcd: EtcdSpec,
    /// The Kubernetes components.
    #[serde(default)]
    pub control_plane: ControlPlaneSpec,
    /// haproxy on public hypervisors.
    #[serde(default)]
    pub ingress: IngressSpec,
    /// How users name the cluster.
    #[serde(default)]
    pub endpoint: EndpointSpec,
    /// Ranges inside the cluster.
    #[serde(default)]
    pub network: NetworkSpec,
    /// The network between the cluster and its workers.
    #[serde(default)]
    pub vpn: VpnSpec,
    /// Where images come from.
    #[serde(default)]
    pub images: ImagesSpec,
    /// How long certificates live.
    #[serde(default)]
    pub certificates: CertificatesSpec,
    /// What Keelway keeps in the cluster for its workers.
    #[serde(default)]
    pub addons: AddonsSpec,
    /// Nothing is done about the cluster, not even its deletion, and no certificate is renewed; what runs goes on.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paused: bool,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// How far the first start of a cluster came. What is true here stays true, as in the
/// [contract](https://cluster-api.sigs.k8s.io/developer/providers/contracts/control-plane) of Cluster API's control planes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Initialization {
    /// Whether an API server was ever ready. Controllers and schedulers, which only ask it, are started from then on.
    #[serde(default)]
    pub control_plane_initialized: bool,
}

/// The release of Keelway that a cluster's gateways, egresses and cluster-controllers are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeelwayStatus {
    /// The tag of their image. A new cluster starts with the release of its driver; another one gets that in its wave.
    pub version: String,
    /// The release before. None: the cluster was created with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_version: Option<String>,
}

/// The store of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdSpec {
    /// Members: 1, 3, 5 or 7. An even number survives no more losses than the odd one below it.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 7))]
    pub replicas: u32,
    /// How large each member's database may grow: 4Gi where this says nothing, 256Mi to 8Gi. A full database takes no more writes. A change
    /// replaces the members, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Memory>,
    /// Bounds of each member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
}

/// Bounds of a component, as those of a container of a Pod. A change replaces the components, one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComponentResources {
    /// The most that it may use.
    #[serde(default)]
    pub limits: ComponentLimits,
}

/// The most that a component may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComponentLimits {
    /// CPU: `2`, or `500m` for half of one. It waits for its turn beyond that. Not limited where this says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Memory: `4Gi`. It is killed and started again beyond that. docs/operations.md has what Keelway allows where this says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// The Kubernetes components of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlPlaneSpec {
    /// Replicas of each role that does not say its own.
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
    /// Keelway's own part inside the cluster, for its workers.
    #[serde(default)]
    pub cluster_controller: ClusterControllerSpec,
}

/// Keelway's own part inside a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterControllerSpec {
    /// Replicas: 2, or 1 beside a single API server, where this says nothing else. One of them acts, the others stand by. 0 runs
    /// none, and no worker can join; a cluster without a VPN or an ingress has none either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9))]
    pub replicas: Option<u32>,
    /// Bounds of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
}

/// The API servers of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiServerSpec {
    /// Replicas, where they differ from `spec.controlPlane.replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: Option<u32>,
    /// More names and addresses in the serving certificate, beside those that Keelway knows.
    #[serde(default, rename = "extraSANs", skip_serializing_if = "Vec::is_empty")]
    pub extra_sans: Vec<String>,
    /// More arguments of the program, by their names without dashes: those of docs/arguments.md. A change replaces the components.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// Bounds of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
}

/// Replicas of one role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicasSpec {
    /// Replicas, where they differ from `spec.controlPlane.replicas`. 0 runs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9))]
    pub replicas: Option<u32>,
    /// More arguments of the program, by their names without dashes: those of docs/arguments.md. A change replaces the components.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// Bounds of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ComponentResources>,
}

/// haproxy in front of the API servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressSpec {
    /// Ingresses, each on a public hypervisor of its own. 0 runs none: the API is then reached by other hypervisors only.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 9))]
    pub replicas: u32,
}

/// How users name the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointSpec {
    /// A DNS name of the user's own over all ingresses. Goes into certificates and kubeconfigs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// Ranges inside the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// Ranges of pods, at most one per family.
    #[serde(default = "pod_cidrs", rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    /// Ranges of Services, at most one per family.
    #[serde(default = "service_cidrs", rename = "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
    /// The DNS domain of the cluster.
    #[serde(default = "dns_domain")]
    pub dns_domain: String,
}

/// The network between the cluster and its workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VpnSpec {
    /// Whether there is one: a gateway beside each ingress, by which workers and API servers reach each other, and an egress beside
    /// each API server. Without it no worker can join.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Ranges of workers, at most one per family. The first address of each is the API's, and in its serving certificates.
    #[serde(default = "vpn_cidrs")]
    pub cidrs: Vec<String>,
}

/// Where images come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagesSpec {
    /// A registry, with an optional path, that holds every image under its own name and tag: `registry.example.com/mirror`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// Secrets of the type `kubernetes.io/dockerconfigjson` in the cluster's namespace, with the credentials of registries. As
    /// `imagePullSecrets` of a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<LocalSecretReference>,
}

/// A Secret of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LocalSecretReference {
    /// Its name.
    pub name: String,
}

/// How long certificates live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CertificatesSpec {
    /// Certificates of components, at most: each lives two thirds of it to all of it, so that those of replicas do not end together.
    #[serde(default = "component_ttl", rename = "componentTTL")]
    pub component_ttl: Span,
    /// Certificates of workers, and so for how long an address rests that a worker had.
    #[serde(default = "worker_ttl", rename = "workerTTL")]
    pub worker_ttl: Span,
    /// Certificates in kubeconfigs of administrators.
    #[serde(default = "admin_ttl", rename = "adminTTL")]
    pub admin_ttl: Span,
    /// Certificate authorities.
    #[serde(default = "authority_ttl", rename = "authorityTTL")]
    pub authority_ttl: Span,
}

/// What Keelway keeps in a cluster for its workers. What is turned off is taken away; nothing else is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddonsSpec {
    /// CoreDNS, the cluster's DNS. Another one has the address that workers ask: the tenth of the first range of Services.
    #[serde(default, rename = "coreDNS")]
    pub core_dns: AddonSpec,
    /// kube-proxy on every worker, which makes Services work.
    #[serde(default)]
    pub kube_proxy: AddonSpec,
    /// metrics-server, for `kubectl top` and autoscaling.
    #[serde(default)]
    pub metrics_server: AddonSpec,
    /// The default CNI configuration. Where it is off, workers write none, and are ready once another one is there.
    #[serde(default)]
    pub cni: AddonSpec,
}

/// Something that Keelway keeps in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddonSpec {
    /// Whether it is there.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn one() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn pod_cidrs() -> Vec<String> {
    vec!["10.244.0.0/16".to_owned()]
}
fn service_cidrs() -> Vec<String> {
    vec!["10.96.0.0/16".to_owned()]
}
/// Of the range that is shared between many (RFC 6598), so that it meets few private networks.
fn vpn_cidrs() -> Vec<String> {
    vec!["100.80.0.0/16".to_owned()]
}
fn dns_domain() -> String {
    "cluster.local".to_owned()
}
fn component_ttl() -> Span {
    Span::hours(8760)
}
fn worker_ttl() -> Span {
    Span::hours(168)
}
fn admin_ttl() -> Span {
    Span::hours(24)
}
fn authority_ttl() -> Span {
    Span::hours(87600)
}

impl Default for EtcdSpec {
    fn default() -> Self {
        Self { replicas: one(), quota: None, resources: None }
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
        Self { replicas: one() }
    }
}

impl Default for NetworkSpec {
    fn default() -> Self {
        Self { pod_cidrs: pod_cidrs(), service_cidrs: service_cidrs(), dns_domain: dns_domain() }
    }
}

impl Default for VpnSpec {
    fn default() -> Self {
        Self { enabled: yes(), cidrs: vpn_cidrs() }
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
            admin_ttl: admin_ttl(),
            authority_ttl: authority_ttl(),
        }
    }
}

/// What Keelway recorded of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterStatus {
    /// Random, minted once, saved before the first effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ClusterId>,
    /// `metadata.generation` that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The port of the API on every public hypervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_port: Option<u16>,
    /// What its ClusterClass gave it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassStatus>,
    /// API servers that there are, those that leave among them. What `kubectl scale` shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Addresses where users reach the API: `https://HOST:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Its authorities and keys, each minted once in its life: the name of each Secret, with a digest that tells it from another one. A
    /// cluster of which one is missing, or is another one, is `Blocked`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub minted: BTreeMap<String, String>,
    /// What the cluster was born with and keeps for its life, written down with the first members of its store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth: Option<ClusterBirth>,
    /// The store's birth and members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdStatus>,
    /// How far the cluster's first start came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// Which release of Keelway the cluster's gateways, egresses and cluster-controllers are of. None: v0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keelway: Option<KeelwayStatus>,
    /// `Available`: the API serves through every ingress. `Progressing`: it is on its way to what its document says; `False` once it
    /// is there (`Settled`), and where it gets no further (`Blocked`). `Degraded`: something of it is not ready. `Paused`: nothing is
    /// done about it, as its document says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// The store of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdStatus {
    /// When the first members were decided, before their first start. Once in a cluster's life.
    pub born_at: Time,
    /// The members of the static initial cluster, by name, with the URLs that their peers reach them at.
    pub initial_cluster: BTreeMap<ComponentName, Vec<String>>,
    /// etcd's own id of the cluster that these members make up, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The members as they are now, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<ComponentName, EtcdMember>,
}

/// A member of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdMember {
    /// etcd's own id of it, in hexadecimal digits.
    pub id: String,
    /// How far it came. It never goes back.
    pub phase: MemberPhase,
    /// The order to remove its data. Without it no machine removes the data of a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<RemovalReason>,
}

/// Why the data of an etcd member is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RemovalReason {
    /// Its cluster is deleted.
    ClusterDeleted,
}

impl RemovalReason {
    /// As it is written in documents and configs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterDeleted => "ClusterDeleted",
        }
    }
}

/// How far a member of a store came: tells one that lost its data from one that never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum MemberPhase {
    /// It was never allowed to start: its machine makes its data directory.
    Pending,
    /// Its data directory was seen with its mark. It may start, on that directory alone.
    Marked,
    /// It was seen at work, and an API server that keeps its objects there was ready. It starts on its data only.
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

    /// Whether somebody asked for its deletion.
    #[must_use]
    pub fn deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The release of Keelway that its gateways, egresses and cluster-controllers are of.
    #[must_use]
    pub fn keelway_version(&self) -> &str {
        let keelway = self.status.as_ref().and_then(|status| status.keelway.as_ref());
        keelway.map_or(KEELWAY_UNRECORDED, |keelway| &keelway.version)
    }

    /// Whether an API server of it was ever ready.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        let initialization = self.status.as_ref().and_then(|status| status.initialization.as_ref());
        initialization.is_some_and(|initialization| initialization.control_plane_initialized)
    }
}

impl ClusterSpec {
    /// How many components of this role there should be.
    #[must_use]
    pub fn replicas(&self, role: Role) -> u32 {
        let plane = &self.control_plane;
        match role {
            Role::Etcd => self.etcd.replicas,
            Role::KubeApiserver => plane.kube_api_server.replicas.unwrap_or(plane.replicas),
            Role::KubeControllerManager => plane.kube_controller_manager.replicas.unwrap_or(plane.replicas),
            Role::KubeScheduler => plane.kube_scheduler.replicas.unwrap_or(plane.replicas),
            Role::ClusterController if !self.takes_workers() => 0,
            Role::ClusterController => {
                plane.cluster_controller.replicas.unwrap_or_else(|| self.replicas(Role::KubeApiserver).min(2))
            }
            Role::Gateway if !self.vpn.enabled => 0,
            Role::Ingress | Role::Gateway => self.ingress.replicas,
        }
    }

    /// Whether workers could reach it.
    #[must_use]
    pub fn takes_workers(&self) -> bool {
        self.vpn.enabled && self.ingress.replicas > 0
    }
}
