//! The pods of components: pure templates.

mod cluster_controller;
mod egress;
mod etcd;
mod gateway;
mod ingress;
mod kube_apiserver;
mod kube_controller_manager;
mod kube_scheduler;
mod kubeconfig;

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::{
    fmt::{self, Display, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use keelway_api::{
    Component,
    component::ComponentSpec,
    machine::{
        CertificateFiles, Container, ContainerCheck, HaproxyServers, Liveness, Mount, OnChange, Pod, PodFile, Start,
    },
    name::PodName,
    registry::RegistryCredentials,
    release::{self, Release},
    role::{HEALTH, Role},
    validated::{ValidatedCluster, ValidatedHypervisor},
};

pub(crate) use ingress::server_name;

use crate::{probe::OWN_LIVENESS, store_creation, tenant::Tenant, world::ValidatedDocuments};

/// Where a container finds its pod's files.
const FILES: &str = "/etc/keelway";

/// One component with all that its pod is made of.
pub(crate) struct PodInputs<'a> {
    tenant: &'a Tenant<'a>,
    world: &'a ValidatedDocuments,
    cluster: &'a ValidatedCluster,
    pod: &'a PodName,
    spec: &'a ComponentSpec,
    machine: &'a ValidatedHypervisor,
}

/// What a pod needs is not in the documents: a key that is not minted yet, the first members of a store that is not born, ..
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingKey(String);

impl Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for MissingKey {}

impl MissingKey {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    fn of_secret(secret: &str, key: &str) -> Self {
        Self(format!("{key} of the Secret {secret}"))
    }
}

/// What differs between roles: the files, the directories that are written, the image, the command.
struct PodTemplate {
    files: Vec<PodFile>,
    data: Vec<(&'static str, &'static str)>,
    image: String,
    command: Vec<String>,
    servers: Option<HaproxyServers>,
    check: ContainerCheck,
    startup_seconds: Option<u32>,
    /// Containers that it relies on: they are started before it.
    beside: Vec<Container>,
}

/// A process that is well answers in milliseconds. A busy machine may make it wait for seconds, and a restart would make that
/// machine busier: period and count are the defaults of Kubernetes' probes.
const CHECK_PERIOD_SECONDS: u32 = 10;
const CHECK_TIMEOUT_SECONDS: u32 = 5;
const CHECK_FAILURES: u32 = 3;
/// How long a component may take until it answers for the first time (kubeadm's startup probes: 24 times, every 10 s).
const STARTUP_SECONDS: u32 = 240;

impl<'a> PodInputs<'a> {
    /// The component with its cluster and machine, where that is there.
    pub(crate) fn of(
        tenant: &'a Tenant<'a>,
        world: &'a ValidatedDocuments,
        pod: &'a PodName,
        spec: &'a ComponentSpec,
    ) -> Option<Self> {
        let machine = world.machines.get(&spec.hypervisor)?;
        Some(Self { tenant, world, cluster: tenant.cluster, pod, spec, machine })
    }

    /// The pod of this component.
    pub(crate) fn pod(&self) -> Result<Pod, MissingKey> {
        let parts = match self.spec.role {
            Role::Etcd => self.etcd(),
            Role::KubeApiserver => self.kube_apiserver(),
            Role::KubeControllerManager => self.kube_controller_manager(),
            Role::KubeScheduler => self.kube_scheduler(),
            Role::ClusterController => self.cluster_controller(),
            Role::Ingress => self.ingress(),
            Role::Gateway => self.gateway(),
        }?;
        let row = self.spec.role.row();
        let container = Container {
            name: row.name.to_string(),
            image: parts.image,
            command: parts.command,
            mounts: mounts(&parts.data),
            resources: self.cluster.bounds.resources(self.spec.role),
            stop_seconds: row.stop_seconds,
            liveness: Some(liveness(parts.check, parts.startup_seconds)),
        };
        let containers: Vec<Container> = parts.beside.into_iter().chain([container]).collect();
        let pause_image = self.release().pause_image(self.cluster.registry.as_deref());
        let images: Vec<&str> =
            containers.iter().map(|container| container.image.as_str()).chain([&*pause_image]).collect();
        let registries = self.registries(&images);
        Ok(Pod {
            user: self.spec.user,
            files: parts.files,
            data: parts.data.iter().map(|(source, _)| (*source).to_string()).collect(),
            containers,
            pause_image,
            servers: parts.servers,
            start: self.start(),
            hold: false,
            registries,
        })
    }

    /// Who pulls these images: the first of the cluster's Secrets that knows.
    fn registries(&self, images: &[&str]) -> BTreeMap<String, RegistryCredentials> {
        let secrets = &self.tenant.pull_secrets;
        let credentials = |image: &str| secrets.iter().find_map(|secret| secret.for_image(image)).cloned();
        images.iter().filter_map(|image| Some(((*image).to_string(), credentials(image)?))).collect()
    }

    /// What must be there before the first start, and before each later one.
    fn start(&self) -> Start {
        let document = self.tenant.document;
        match self.spec.role {
            Role::Etcd => store_creation::start_of(Some(document), &self.pod.component),
            Role::KubeApiserver if !store_creation::any_may_start(document) => Start::Later,
            role if store_creation::waits_for_api(document, role) => Start::Later,
            Role::KubeApiserver
            | Role::KubeControllerManager
            | Role::KubeScheduler
            | Role::ClusterController
            | Role::Ingress
            | Role::Gateway => Start::Always,
        }
    }

    /// The address that other machines reach this one at.
    fn address(&self) -> String {
        self.machine.private.first().map(ToString::to_string).unwrap_or_default()
    }

    fn url(&self, port: &str) -> String {
        self.machine.private.first().map(|address| url(address, self.spec.port(port))).unwrap_or_default()
    }

    /// A `GET` of a health path on one of this component's ports, whose server is known by its certificate's file. Without an address it
    /// is asked on loopback.
    fn https(
        &self,
        address: Option<&IpAddr>,
        port: &str,
        path: &str,
        (server_name, authority): (&str, &str),
        identity: Option<CertificateFiles>,
    ) -> ContainerCheck {
        let address = address.copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        ContainerCheck::Https {
            address: SocketAddr::new(address, self.spec.port(port)),
            path: path.to_string(),
            server_name: server_name.to_string(),
            authority: authority.to_string(),
            identity,
        }
    }

    /// One of this component's ports on loopback.
    fn loopback(&self, port: &str) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.spec.port(port))
    }

    /// Where a program of Keelway's own tells its health.
    fn health_address(&self) -> SocketAddr {
        self.loopback(HEALTH)
    }

    /// Whether such a program lives.
    fn health_check(&self) -> ContainerCheck {
        self.loopback_check(HEALTH)
    }

    fn loopback_check(&self, port: &str) -> ContainerCheck {
        ContainerCheck::Http { address: self.loopback(port), path: OWN_LIVENESS.to_string() }
    }

    fn kubernetes_image(&self) -> String {
        self.release().kubernetes_image(self.spec.role.row().name, self.cluster.registry.as_deref())
    }

    /// The image of Keelway's own programs, of the release that the cluster's wave has reached.
    fn own_image(&self) -> String {
        let version = self.tenant.document.keelway_version();
        release::cluster_controller_image(self.cluster.registry.as_deref(), version)
    }

    /// What this component runs, which its cluster may be ahead of.
    fn release(&self) -> &'static Release {
        release::find(&self.spec.version).unwrap_or(self.cluster.release)
    }

    /// What the user gives to the program, beside Keelway's own.
    fn extra_flags(&self) -> Vec<String> {
        self.cluster.extra_arguments.get(&self.spec.role).cloned().unwrap_or_default()
    }

    /// Components of one role of this cluster that stay, each with its machine.
    fn siblings(&self, role: Role) -> impl Iterator<Item = (&'a PodName, &'a ComponentSpec, &'a ValidatedHypervisor)> {
        self.siblings_that(role, |component| !component.is_leaving())
    }

    fn siblings_that(
        &self,
        role: Role,
        count: fn(&Component) -> bool,
    ) -> impl Iterator<Item = (&'a PodName, &'a ComponentSpec, &'a ValidatedHypervisor)> {
        let world = self.world;
        self.tenant.of_role(role).filter(move |(_, component)| count(component)).filter_map(move |(pod, component)| {
            Some((pod, &component.spec, world.machines.get(&component.spec.hypervisor)?))
        })
    }

    fn value(&self, secret: &str, key: &str) -> Result<Vec<u8>, MissingKey> {
        self.tenant.value(secret, key).map(<[u8]>::to_vec).ok_or_else(|| MissingKey::of_secret(secret, key))
    }

    /// A file with a value of one of the cluster's Secrets.
    fn shared(&self, path: &str, secret: &str, key: &str, on_change: OnChange) -> Result<PodFile, MissingKey> {
        Ok(PodFile { path: path.to_string(), content: self.value(secret, key)?, on_change })
    }

    /// The two files of a certificate of this component, which its program reads anew by itself.
    fn certificate(&self, name: &str) -> Result<[PodFile; 2], MissingKey> {
        let secret = self.pod.component.as_str();
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        Ok([
            self.shared(&certificate, secret, &certificate, OnChange::PickedUp)?,
            self.shared(&key, secret, &key, OnChange::PickedUp)?,
        ])
    }
}

/// The files of a pod, and what its containers write, as one of them sees them.
fn mounts(data: &[(&str, &str)]) -> Vec<Mount> {
    let mount = |source: &str, target: &str, read_only| Mount {
        source: source.to_string(),
        target: target.to_string(),
        read_only,
    };
    let written = data.iter().map(|(source, target)| mount(source, target, false));
    core::iter::once(mount("files", FILES, true)).chain(written).collect()
}

fn liveness(check: ContainerCheck, startup_seconds: Option<u32>) -> Liveness {
    Liveness {
        check,
        period_seconds: CHECK_PERIOD_SECONDS,
        timeout_seconds: CHECK_TIMEOUT_SECONDS,
        failure_threshold: CHECK_FAILURES,
        startup_seconds,
    }
}

/// A program of the image that all of Keelway's own share.
fn keelway_command(program: &str, config: &str) -> Vec<String> {
    vec!["/keelway-cluster-controller".to_string(), program.to_string(), flag("config", at(config))]
}

/// `https://ADDRESS:PORT`, with the brackets that an IPv6 address wants.
pub(crate) fn url(address: &IpAddr, port: u16) -> String {
    format!("https://{}", core::net::SocketAddr::new(*address, port))
}

/// A socket in a directory of the pod, inside the container.
fn socket((_, directory): (&str, &str), name: &str) -> String {
    [directory, "/", name, ".sock"].concat()
}

/// The path of a file inside the container.
fn at(path: &str) -> String {
    [FILES, "/", path].concat()
}

/// `--name=value`.
fn flag(name: &str, value: impl Display) -> String {
    let mut text = String::with_capacity(name.len() + 48);
    // Writing to a String cannot fail.
    let _ = write!(text, "--{name}={value}");
    text
}

fn text(path: &str, content: impl Into<String>, on_change: OnChange) -> PodFile {
    PodFile { path: path.to_string(), content: content.into().into_bytes(), on_change }
}

/// A configuration file of Kubernetes, as JSON: it is YAML, and its writer cannot fail.
fn document(path: &str, content: &serde_json::Value, on_change: OnChange) -> PodFile {
    text(path, format!("{content:#}\n"), on_change)
}
