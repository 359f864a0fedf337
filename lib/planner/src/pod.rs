//! The pods of components, built from templates without side effects.

mod asleep_ingress;
mod cluster_controller;
mod egress;
mod etcd;
mod fleet;
mod fleet_controller;
mod gateway;
pub(crate) mod gateway_streams;
mod hosted;
mod ingress;
mod kube_apiserver;
mod kube_controller_manager;
mod kube_scheduler;
mod kubeconfig;

pub(crate) use gateway::gateway_mtu;
pub(crate) use kube_apiserver::key_name;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::{
    fmt::{Display, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use keelway_api::{
    Component, argument,
    component::ComponentSpec,
    image_override::overridden,
    machine::{
        CertificateFiles, Container, ContainerCheck, HaproxyServers, Liveness, Mount, OnChange, Pod, PodFile, Start,
    },
    name::PodName,
    registry::RegistryCredentials,
    release::{self, KEELWAY, KEELWAY_UNRECORDED, Release},
    role::{HEALTH, Role},
    validated::{ValidatedCluster, ValidatedHypervisor},
};

use crate::{
    probe::OWN_LIVENESS, rebuild, secret_names, store_start, tenant::Tenant, text::url, world::ValidatedDocuments,
};

/// The directory with the pod's files, inside a container.
const FILES: &str = "/etc/keelway";

/// A component with everything that its pod is built from.
pub(crate) struct PodInputs<'a> {
    tenant: &'a Tenant<'a>,
    world: &'a ValidatedDocuments,
    cluster: &'a ValidatedCluster,
    pod: &'a PodName,
    spec: &'a ComponentSpec,
    machine: &'a ValidatedHypervisor,
}

/// Something that a pod needs is not in the documents: a key that is not minted yet, or the first members of a store before its creation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MissingKey(String);

impl MissingKey {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    fn of_secret(secret: &str, key: &str) -> Self {
        Self(format!("{key} of the Secret {secret}"))
    }
}

/// The parts of a pod that differ between roles.
struct PodTemplate {
    files: Vec<PodFile>,
    data: Vec<(&'static str, &'static str)>,
    image: String,
    command: Vec<String>,
    servers: Option<HaproxyServers>,
    check: ContainerCheck,
    startup_seconds: Option<u32>,
    /// Containers that the component relies on. They start before it.
    beside: Vec<Container>,
}

/// A healthy process responds in milliseconds. On a busy machine a response can take seconds, and a restart would add load there. Period and
/// count are the defaults of Kubernetes' probes.
const CHECK_PERIOD_SECONDS: u32 = 10;
const CHECK_TIMEOUT_SECONDS: u32 = 5;
const CHECK_FAILURES: u32 = 3;
/// The time that a component has until its first response (kubeadm's startup probes: 24 times, every 10 s).
const STARTUP_SECONDS: u32 = 240;

impl<'a> PodInputs<'a> {
    /// Returns the inputs of a component. None: the documents do not have its machine.
    pub(crate) fn of(
        tenant: &'a Tenant<'a>,
        world: &'a ValidatedDocuments,
        pod: &'a PodName,
        spec: &'a ComponentSpec,
    ) -> Option<Self> {
        let machine = world.machines.get(&spec.hypervisor)?;
        Some(Self { tenant, world, cluster: tenant.cluster, pod, spec, machine })
    }

    pub(crate) fn pod(&self) -> Result<Pod, MissingKey> {
        let parts = match self.spec.role {
            Role::Etcd => self.etcd(),
            Role::KubeApiserver => self.kube_apiserver(),
            Role::KubeControllerManager => self.kube_controller_manager(),
            Role::KubeScheduler => self.kube_scheduler(),
            Role::ClusterController => self.cluster_controller(),
            Role::FleetController => self.fleet_controller(),
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
        let containers: Vec<Container> = parts
            .beside
            .into_iter()
            .chain([container])
            .map(|container| Container { image: self.overridden(container.image), ..container })
            .collect();
        let pause_image = self.overridden(self.release().pause_image(self.cluster.registry.as_deref()));
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
            prefetch: BTreeSet::new(),
        })
    }

    /// Adds the images for the next release of the component to its pod, with their credentials.
    pub(crate) fn with_prefetch(&self, pod: Pod) -> Pod {
        let prefetch = self.next_images();
        let credentials = self.registries(&prefetch.iter().map(String::as_str).collect::<Vec<_>>());
        Pod { registries: pod.registries.into_iter().chain(credentials).collect(), prefetch, ..pod }
    }

    /// The images that this component needs for its next release, on the way to that of its cluster. Empty if it runs that, and for a downgrade, whose
    /// images the machine may still have.
    pub(crate) fn next_images(&self) -> BTreeSet<String> {
        let (own, registry) = (self.release(), self.cluster.registry.as_deref());
        let next = own.next_towards(&self.cluster.release);
        if next <= own {
            return BTreeSet::new();
        }
        let program = match self.spec.role {
            Role::Etcd => Some(next.etcd_image(registry)),
            Role::KubeApiserver | Role::KubeControllerManager | Role::KubeScheduler => {
                Some(next.kubernetes_image(self.spec.role.row().name, registry))
            }
            // Their own image does not depend on the release.
            Role::ClusterController | Role::FleetController | Role::Ingress | Role::Gateway => None,
        };
        let images = program.into_iter().chain([next.pause_image(registry)]);
        images.map(|image| self.overridden(image)).collect()
    }

    /// Whether Keelway's image in the cluster's pods is later than v0.1.0, which refuses fields that it does not know. Until its release is set, this
    /// program has the number of v0.1.0.
    fn follows_v0_1_0(&self) -> bool {
        let version = self.tenant.document.keelway_version();
        version == KEELWAY || version != KEELWAY_UNRECORDED
    }

    /// The registry credentials for these images, by image. If several Secrets of the cluster match an image, the first counts.
    fn registries(&self, images: &[&str]) -> BTreeMap<String, RegistryCredentials> {
        let secrets = &self.tenant.pull_secrets;
        let credentials = |image: &str| secrets.iter().find_map(|secret| secret.for_image(image)).cloned();
        images.iter().filter_map(|image| Some(((*image).to_string(), credentials(image)?))).collect()
    }

    /// The condition for the first start and for each later one.
    fn start(&self) -> Start {
        let document = self.tenant.document;
        let starts_later = self.spec.role == Role::Etcd && document.starts_later(&self.pod.component);
        if document.stops_in_sleep(self.spec.role) || starts_later {
            return Start::Stopped;
        }
        if let Some(start) = rebuild::start_in_rebuild(document, self.spec.role, &self.pod.component) {
            return start;
        }
        match self.spec.role {
            Role::Etcd => store_start::start_of(Some(document), &self.pod.component),
            Role::KubeApiserver if !store_start::any_may_start(document) => Start::Later,
            role if store_start::waits_for_api(document, role) => Start::Later,
            Role::KubeApiserver
            | Role::KubeControllerManager
            | Role::KubeScheduler
            | Role::ClusterController
            | Role::FleetController
            | Role::Ingress
            | Role::Gateway => Start::Always,
        }
    }

    /// The address at which other machines reach this one.
    fn address(&self) -> String {
        self.machine.private.first().map(ToString::to_string).unwrap_or_default()
    }

    fn url(&self, port: &str) -> String {
        self.machine.private.first().map(|address| url(address, self.spec.port(port))).unwrap_or_default()
    }

    /// A `GET` of a health path on one of this component's ports. The server's certificate is verified with the file of an authority. If there is
    /// no address, the check uses loopback.
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
        SocketAddr::new(self.probed_address(), self.spec.port(port))
    }

    /// The address at which a program of Keelway reports its health.
    fn health_address(&self) -> SocketAddr {
        self.loopback(HEALTH)
    }

    /// The liveness check of a program of Keelway.
    fn health_check(&self) -> ContainerCheck {
        self.loopback_check(HEALTH)
    }

    fn loopback_check(&self, port: &str) -> ContainerCheck {
        ContainerCheck::Http { address: self.loopback(port), path: OWN_LIVENESS.to_string() }
    }

    fn overridden(&self, image: String) -> String {
        overridden(image, &self.cluster.image_overrides)
    }

    fn kubernetes_image(&self) -> String {
        self.release().kubernetes_image(self.spec.role.row().name, self.cluster.registry.as_deref())
    }

    /// The image of Keelway's programs, of the release to which the cluster is upgraded. A cluster waits for its wave before it is upgraded.
    fn own_image(&self) -> String {
        let version = self.tenant.document.keelway_version();
        release::cluster_controller_image(self.cluster.registry.as_deref(), version)
    }

    /// The release of this component, which can be older than that of its cluster.
    fn release(&self) -> Release {
        release::find(&self.spec.version).unwrap_or(self.cluster.release)
    }

    /// The arguments that the user sets for the program, besides Keelway's. During an upgrade, an older program gets none that it does not know.
    fn extra_flags(&self) -> Vec<String> {
        let (role, release) = (self.spec.role, self.release());
        let is_unknown = |flag: &str| {
            let name = flag.trim_start_matches('-').split('=').next();
            argument::of_role(role).iter().any(|found| Some(found.name) == name && !found.is_known_to(&release))
        };
        let flags = self.cluster.extra_arguments.get(&role).into_iter().flatten();
        flags.filter(|flag| !is_unknown(flag)).cloned().collect()
    }

    /// The components of one role of this cluster that stay, each with its machine.
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

    /// The kubernetes authority that signs certificates, while those of the previous one are replaced. Workers and fleet agents follow it.
    fn next_issuer(&self) -> Option<String> {
        self.value(secret_names::KUBERNETES, "previous.crt").ok()?;
        String::from_utf8(self.value(secret_names::KUBERNETES, "active.crt").ok()?).ok()
    }

    /// A file with a value of one of the cluster's Secrets.
    fn shared(&self, path: &str, secret: &str, key: &str, on_change: OnChange) -> Result<PodFile, MissingKey> {
        Ok(PodFile { path: path.to_string(), content: self.value(secret, key)?, on_change })
    }

    /// The two files of a certificate of this component. Its program reads them again without a restart.
    fn certificate(&self, name: &str) -> Result<[PodFile; 2], MissingKey> {
        let secret = self.pod.component.as_str();
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        Ok([
            self.shared(&certificate, secret, &certificate, OnChange::PickedUp)?,
            self.shared(&key, secret, &key, OnChange::PickedUp)?,
        ])
    }
}

/// The mounts of a container: the files of the pod, and the directories that its containers write.
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

/// All programs of Keelway for workers are in one image and one binary.
fn keelway_command(program: &str, config: &str) -> Vec<String> {
    vec!["/keelway-cluster-controller".to_string(), program.to_string(), flag("config", at(config))]
}

/// The path of a socket in a directory of the pod, inside the container.
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

/// A configuration file of Kubernetes, as JSON: JSON is valid YAML, and writing JSON cannot fail.
fn document(path: &str, content: &serde_json::Value, on_change: OnChange) -> PodFile {
    text(path, format!("{content:#}\n"), on_change)
}
