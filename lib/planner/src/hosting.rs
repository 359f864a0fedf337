//! The control plane of a fleet in a Kubernetes cluster: the pods of its components, from the templates of hypervisors' pods.
//!
//! A Deployment or a StatefulSet has one template for all its replicas. So each role has one component here, with one set of certificates.

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::net::{IpAddr, Ipv4Addr};

use keelway_api::{
    Documents, Time,
    cluster::{ClusterSpec, EtcdStatus},
    component::ComponentSpec,
    fault::Faults,
    hypervisor::{HypervisorEndpoint, HypervisorRole, PortRange},
    image_override::overridden,
    jiff::Timestamp,
    machine::{OnChange, Pod, PodFile},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, NameError, PodName},
    release::fleet_controller_image,
    role::{CLIENT, HEALTH, PEER, Role, SECURE},
    validated::ValidatedHypervisor,
};

use crate::{
    FirstBindings, MintRequest, ObservedCertificates, PassObservation, Waiting, certificates, component_set,
    minted::note_minted,
    plan::Plan,
    pod::{MissingKey, PodInputs},
    secret_names::KUBERNETES,
    tenant::Tenant,
    world::ValidatedDocuments,
};

/// The roles of a control plane in a Kubernetes cluster. The Service of the API servers replaces the ingresses.
const ROLES: [Role; 4] = [Role::Etcd, Role::KubeApiserver, Role::KubeControllerManager, Role::FleetController];
/// The name of the Service and of the Deployment of the API servers.
pub const API_SERVICE: &str = "kube-apiserver";
/// The name of the Service and of the StatefulSet of the etcd members. Kubernetes names the pods `etcd-0`, `etcd-1` and so on.
pub const STORE_SERVICE: &str = "etcd";
/// The Secret of the identity that applies the first bindings of the fleet.
pub(crate) const HOST_SECRET: &str = "fleet-host";
/// The environment variables of every container, as arguments refer to them: the name and the address of its pod.
pub(crate) const POD_NAME: &str = "$(POD_NAME)";
pub(crate) const POD_IP: &str = "$(POD_IP)";
/// The port of etcd for metrics and health. It requires no client certificate, which a kubelet could not present.
pub(crate) const STORE_METRICS: &str = "metrics";
/// The name of the machine that stands for the Kubernetes cluster.
const MACHINE: &str = "hosting";
/// The user and group of all containers.
const USER: u32 = 65532;
/// The ports of the pods. Each pod has its own address.
const PORTS: [(Role, &[(&str, u16)]); 4] = [
    (Role::Etcd, &[(CLIENT, 2379), (PEER, 2380), (STORE_METRICS, 2381)]),
    (Role::KubeApiserver, &[(SECURE, 6443)]),
    (Role::KubeControllerManager, &[(SECURE, 10257)]),
    (Role::FleetController, &[(HEALTH, 8080)]),
];

/// The namespace of a Kubernetes cluster in which the control plane of a fleet runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostingNamespace {
    /// The name of the namespace.
    pub name: String,
    /// The endpoint at which people and fleet agents reach the API: `HOST:PORT`.
    pub endpoint: String,
    /// The port of the Service of the API servers.
    pub port: u16,
    /// The number of etcd members.
    pub members: u32,
}

/// The pod of a role of a control plane, without what differs between its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedPod {
    /// The role.
    pub role: Role,
    /// The number of replicas.
    pub replicas: u32,
    /// The pod.
    pub pod: Pod,
}

/// A control plane in a Kubernetes cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedFleet {
    /// The pods of its components.
    pub pods: Vec<HostedPod>,
    /// The files of the program that applies the first bindings of the fleet and reports when it is ready.
    pub host_files: Vec<PodFile>,
    /// The image of that program.
    pub host_image: String,
}

/// A control plane cannot be built from these documents.
#[derive(Debug, thiserror::Error)]
pub enum HostingError {
    /// A document has faults.
    #[error(transparent)]
    Faults(Faults),
    /// The documents do not have exactly one Cluster with an id.
    #[error("the documents do not contain exactly one fleet")]
    NotOneFleet,
    /// A part has no valid name.
    #[error("a component cannot be named")]
    Name(#[source] NameError),
    /// An authority or key is missing or differs.
    #[error("{0}")]
    Blocked(Box<Waiting>),
    /// A key is missing.
    #[error("cannot build the pods")]
    MissingKey(#[source] MissingKey),
}

impl HostingNamespace {
    /// The names of the etcd members, each with its DNS name.
    pub(crate) fn members(&self) -> impl Iterator<Item = (String, String)> + '_ {
        (0..self.members).map(|index| {
            let name = format!("{STORE_SERVICE}-{index}");
            let host = self.member_host(&name);
            (name, host)
        })
    }

    /// The DNS name of a member. It has no domain, because a hosting cluster may have any.
    pub(crate) fn member_host(&self, member: &str) -> String {
        format!("{member}.{STORE_SERVICE}.{}.svc", self.name)
    }

    /// Where pods in the namespace reach the API: `HOST:PORT`.
    pub(crate) fn api_server(&self) -> String {
        format!("{}:{}", self.api_host(), self.port)
    }

    /// The DNS name of the Service of the API servers.
    #[must_use]
    pub fn api_host(&self) -> String {
        format!("{API_SERVICE}.{}.svc", self.name)
    }
}

/// Returns the requests for the authorities, keys and certificates that a control plane lacks, and for the certificates that have reached two thirds
/// of their lifetime.
///
/// # Errors
/// The documents do not contain one valid fleet, or an authority or key of it was lost.
pub fn hosted_requests(
    documents: &Documents,
    hosting: &HostingNamespace,
    certificates: ObservedCertificates,
    now: Timestamp,
) -> Result<Vec<MintRequest>, HostingError> {
    let (mut documents, _, _) = with_components(documents)?;
    let world = validated(&documents, hosting)?;
    let seen = PassObservation { certificates, ..PassObservation::default() };
    let mut plan = Plan {
        documents: core::mem::take(&mut documents),
        mint: Vec::new(),
        agents: BTreeMap::new(),
        bindings: Vec::new(),
        stores: BTreeMap::new(),
        rewrites: BTreeMap::new(),
        decisions: Vec::new(),
        waiting: Vec::new(),
        due: None,
    };
    certificates::plan_certificates(&mut plan, &world, &seen, now);
    match plan.waiting.pop() {
        Some(waiting) => Err(HostingError::Blocked(Box::new(waiting))),
        None => Ok(plan.mint),
    }
}

/// Records in the Cluster which authorities and keys were minted for it, so that a lost one is noticed.
pub fn record_minted(documents: &mut Documents) {
    note_minted(documents);
}

/// Returns a control plane, from documents whose keys are all minted.
///
/// # Errors
/// The documents do not contain one valid fleet, or a key is missing.
pub fn hosted_fleet(documents: &Documents, hosting: &HostingNamespace) -> Result<HostedFleet, HostingError> {
    let (mut documents, reference, spec) = with_components(documents)?;
    let first = first_members(hosting).map_err(HostingError::Name)?;
    if let Some(cluster) = documents.clusters.get_mut(&reference) {
        cluster.status.get_or_insert_default().etcd = Some(first);
    }
    let world = validated(&documents, hosting)?;
    let tenant = Tenant::all(&documents, &world).next().ok_or(HostingError::NotOneFleet)?;
    let mut pods = Vec::new();
    for (name, component) in &tenant.components {
        let role = component.spec.role;
        let inputs = PodInputs::of(&tenant, &world, name, &component.spec).ok_or(HostingError::NotOneFleet)?;
        let pod = inputs.pod().map_err(HostingError::MissingKey)?;
        pods.push(HostedPod { role, replicas: spec.replicas(role), pod });
    }
    let host_files = host_files(&tenant, hosting).map_err(HostingError::MissingKey)?;
    let version = tenant.document.keelway_version();
    let host_image = fleet_controller_image(tenant.cluster.registry.as_deref(), version);
    let host_image = overridden(host_image, &tenant.cluster.image_overrides);
    Ok(HostedFleet { pods, host_files, host_image })
}

/// The kubeconfig with its identity, and the objects to apply, in stages.
fn host_files(tenant: &Tenant, hosting: &HostingNamespace) -> Result<Vec<PodFile>, MissingKey> {
    let file = |path: &str, secret: &str, key: &str| {
        let content =
            tenant.value(secret, key).ok_or_else(|| MissingKey::new(format!("{key} of the Secret {secret}")))?;
        Ok(PodFile { path: path.to_string(), content: content.to_vec(), on_change: OnChange::PickedUp })
    };
    let stages = serde_json::Value::from_iter(FirstBindings::Fleet.stages()).to_string();
    Ok(vec![
        PodInputs::kubeconfig_of(&hosting.api_server(), OnChange::PickedUp),
        file("ca.crt", KUBERNETES, "bundle.crt")?,
        file("client.crt", HOST_SECRET, "client.crt")?,
        file("client.key", HOST_SECRET, "client.key")?,
        PodFile { path: "bindings.json".to_string(), content: stages.into_bytes(), on_change: OnChange::PickedUp },
    ])
}

/// The documents with one component for each role.
fn with_components(documents: &Documents) -> Result<(Documents, ClusterRef, ClusterSpec), HostingError> {
    let mut clusters = documents.clusters.iter();
    let (Some((reference, cluster)), None) = (clusters.next(), clusters.next()) else {
        return Err(HostingError::NotOneFleet);
    };
    let id = cluster.id().filter(|_| cluster.spec.is_fleet()).ok_or(HostingError::NotOneFleet)?;
    let mut documents = documents.clone();
    for role in ROLES {
        let (name, spec) = component(reference, id, &cluster.spec, role).map_err(HostingError::Name)?;
        let document = component_set::document(&name, spec);
        documents.components.insert(name, document);
    }
    Ok((documents, reference.clone(), cluster.spec.clone()))
}

fn component(
    reference: &ClusterRef,
    id: &ClusterId,
    cluster: &ClusterSpec,
    role: Role,
) -> Result<(PodName, ComponentSpec), NameError> {
    let ports = PORTS.iter().filter(|(of, _)| *of == role).flat_map(|(_, ports)| ports.iter());
    let spec = ComponentSpec {
        cluster: reference.clone(),
        cluster_id: id.clone(),
        role,
        index: 0,
        version: cluster.version.clone(),
        hypervisor: MACHINE.parse()?,
        ports: ports.map(|(name, port)| ((*name).to_string(), *port)).collect(),
        user: USER,
        placement: String::new(),
        newer: keelway_api::Newer::default(),
    };
    Ok((PodName { cluster: id.clone(), component: role.component(0)? }, spec))
}

fn first_members(hosting: &HostingNamespace) -> Result<EtcdStatus, NameError> {
    let port =
        PORTS.iter().flat_map(|(_, ports)| ports.iter()).find(|(name, _)| *name == PEER).map_or(0, |port| port.1);
    let member = |(name, host): (String, String)| {
        let name: ComponentName = name.parse()?;
        Ok((name, [format!("https://{host}:{port}")].into()))
    };
    Ok(EtcdStatus {
        born_at: Time(Timestamp::UNIX_EPOCH),
        initial_cluster: hosting.members().map(member).collect::<Result<_, NameError>>()?,
        cluster_id: None,
        members: BTreeMap::new(),
        next_index: None,
        change: None,
        quorum_lost_since: None,
        rebuild: None,
        rebuilt: None,
        snapshots: None,
        space: None,
    })
}

/// The documents after validation, with a machine that stands for the Kubernetes cluster.
fn validated(documents: &Documents, hosting: &HostingNamespace) -> Result<ValidatedDocuments, HostingError> {
    let world = ValidatedDocuments::of(documents).map_err(HostingError::Faults)?;
    let name: HypervisorName = MACHINE.parse().map_err(HostingError::Name)?;
    let machine = ValidatedHypervisor {
        name: name.clone(),
        role: HypervisorRole::Private,
        endpoint: HypervisorEndpoint::Unix { path: String::new() },
        // A pod reaches itself there. Its own address is known only when it runs.
        private: [IpAddr::V4(Ipv4Addr::LOCALHOST)].into(),
        public: Vec::new(),
        bind: Vec::new(),
        ports: PortRange { from: 1024, to: u16::MAX },
        schedulable: false,
        drained: false,
        zone: String::new(),
        labels: BTreeMap::new(),
    };
    Ok(world.hosted(hosting.clone(), BTreeMap::from([(name, machine)])))
}
