//! Validates a Cluster.

use core::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{
    FaultCollector, ValidatedCluster, arguments, check_name, fleet, labels::check_metadata, network, restore,
    snapshots, workers,
};
use crate::{
    Cluster, Documents,
    class_status::ClassImagesSpec,
    cluster::{CertificatesSpec, LocalSecretReference},
    duration::Span,
    fault::Fault,
    image_override::{self, ImageOverride},
    name::{is_label, is_subdomain},
    release::{self, Release},
    resources::{self, ClusterResources},
    schema::suggestion,
    secret_name::SecretName,
    tree::{field, item},
};

/// The maximum number of etcd members. More make writes slower and do not tolerate more realistic faults (etcd's FAQ, "What is maximum cluster
/// size?").
const MOST_MEMBERS: u32 = 7;
/// The minimum lifetime of a certificate. It leaves time for renewal.
pub(crate) const SHORTEST_LIFE: Span = Span::minutes(10);
/// The maximum lifetime of a certificate: a hundred years of 8760 hours.
pub(crate) const LONGEST_LIFE: Span = Span::hours(876_000);

impl ValidatedCluster {
    /// Validates a Cluster without its class.
    ///
    /// # Errors
    /// Every fault, by field.
    pub fn parse(document: &Cluster) -> Result<Self, Vec<Fault>> {
        let mut faults = FaultCollector::default();
        let spec = &document.spec;
        let reference = document.reference();
        check_name(Some(&reference.name), &mut faults);
        check_metadata(&document.metadata, &mut faults);
        if !is_label(&reference.namespace, 63) {
            faults.add(
                "metadata.namespace",
                format!("{:?} is not an RFC 1123 label", reference.namespace),
                "it must consist of lowercase letters, digits and -, and start and end with a letter or digit",
            );
        }
        let release = faults.take(find_release(&spec.version));
        check_members(spec.etcd.replicas, &mut faults);
        restore::check(&spec.etcd, &mut faults);
        snapshots::check(spec.etcd.snapshots.as_ref(), &mut faults);
        let network::ClusterRanges { pods, services, vpn } = network::ranges(spec, &mut faults);
        network::check_mtu(spec.vpn.mtu, [&pods, &services, &vpn], &mut faults);
        network::check_node_port_addresses(&spec.addons.kube_proxy.node_port_addresses, &services, &mut faults);
        network::check_domain(&spec.network.dns_domain, &mut faults);
        let (extra_names, extra_addresses) = alternatives(&spec.control_plane.kube_api_server.extra_sans, &mut faults);
        let extra_arguments = arguments::extra(&spec.control_plane, release.as_ref(), &mut faults);
        check_ingress_port(spec.ingress.port, &mut faults);
        check_host(spec.endpoint.host.as_deref(), &mut faults);
        check_registry(spec.images.registry.as_deref(), &mut faults);
        check_overrides(&spec.images.overrides, &mut faults);
        let pull_secrets = pull_secrets(&reference.namespace, &spec.images.pull_secrets, &mut faults);
        check_lives(&spec.certificates, &mut faults);
        workers::check(&spec.workers, release.as_ref(), &mut faults);
        fleet::check(spec, &mut faults);
        for Fault { field, problem, help, .. } in resources::faults(spec) {
            faults.add(&field, problem, help);
        }
        faults.or(release.map(|release| Self {
            reference,
            release,
            is_fleet: spec.is_fleet(),
            pods,
            services,
            vpn: if spec.is_fleet() { Vec::new() } else { vpn },
            vpn_enabled: spec.has_vpn(),
            vpn_mtu: document.vpn_mtu(),
            domain: spec.network.dns_domain.clone(),
            extra_names,
            extra_addresses,
            bounds: ClusterResources::of(spec),
            extra_arguments,
            host: spec.endpoint.host.clone(),
            machines: Some(LabelSelector::default()),
            registry: spec.images.registry.clone(),
            image_overrides: spec.images.overrides.clone(),
            pull_secrets,
            certificates: spec.certificates.clone(),
            workers: spec.workers.clone(),
            addons: spec.addons.clone(),
            paused: spec.paused,
        }))
    }
}

impl ValidatedCluster {
    /// Validates a Cluster with its class, or with the recorded settings of its last class. Images of the class take precedence over those of the
    /// Cluster.
    ///
    /// # Errors
    /// Every fault, by field.
    pub fn of_class(document: &Cluster, documents: &Documents) -> Result<Self, Vec<Fault>> {
        let is_as_born = document.immutable_field_faults().is_empty();
        let mut cluster = if is_as_born { Self::parse(document)? } else { Self::parse(&with_birth_values(document))? };
        let class = documents.class_of(document);
        let last = document.status.as_ref().and_then(|status| status.class.as_ref());
        cluster.machines = match (class, last) {
            (Some(class), _) => Some(class.spec.hypervisor_selector.clone()),
            (None, Some(_)) => None,
            (None, None) => cluster.machines,
        };
        let images = class.map(|class| &class.spec.images).or(last.map(|last| &last.images));
        if let Some(images) = images.filter(|images| !images.is_empty()) {
            cluster.take_images(images);
        }
        Ok(cluster)
    }

    fn take_images(&mut self, images: &ClassImagesSpec) {
        self.registry.clone_from(&images.registry);
        self.image_overrides.clone_from(&images.overrides);
        self.pull_secrets = images.secrets().collect();
    }
}

/// Returns the Cluster with its immutable fields as they were at its creation. If a person changes such a field, the cluster continues with the
/// original value.
fn with_birth_values(document: &Cluster) -> Cluster {
    let mut kept = document.clone();
    if let Some(birth) = document.birth() {
        kept.spec = birth.restored_spec(&document.spec);
    }
    kept
}

fn find_release(version: &str) -> Result<Release, Fault> {
    release::find(version).ok_or_else(|| {
        let bare = version.strip_prefix('v').and_then(release::find);
        let help = match bare {
            Some(release) => format!("write {release}"),
            None => format!("supported values: {}", release::names()),
        };
        let problem = format!("{version:?} is not supported");
        Fault::of("spec.version", problem, help)
    })
}

fn check_members(replicas: u32, faults: &mut FaultCollector) {
    const FIELD: &str = "spec.etcd.replicas";
    if !(1..=MOST_MEMBERS).contains(&replicas) {
        faults.add(
            FIELD,
            format!("must be an odd number from 1 to {MOST_MEMBERS}, not {replicas}"),
            "write 1, 3, 5 or 7",
        );
    } else if replicas.is_multiple_of(2) {
        faults.add(
            FIELD,
            format!("must be odd: {replicas} members do not tolerate more failures than {}", replicas - 1),
            "write 1, 3, 5 or 7",
        );
    }
}

fn alternatives(texts: &[String], faults: &mut FaultCollector) -> (Vec<String>, Vec<IpAddr>) {
    let mut names = Vec::new();
    let mut addresses = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        if let Ok(address) = text.parse() {
            addresses.push(address);
        } else if is_dns_name(text.strip_prefix("*.").unwrap_or(text)) {
            names.push(text.clone());
        } else {
            faults.add(
                &item("spec.controlPlane.kubeAPIServer.extraSANs", index),
                format!("{text:?} is neither a DNS name nor an address"),
                "write api.example.com, *.example.com or 192.0.2.1, without scheme and port",
            );
        }
    }
    (names, addresses)
}

/// Returns whether the text is a DNS name whose last label is not a number. Resolvers treat such a name as an address (RFC 1123, section 2.1).
fn is_dns_name(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    is_subdomain(text) && !last.chars().all(|c| c.is_ascii_digit())
}

fn check_ingress_port(port: Option<u16>, faults: &mut FaultCollector) {
    if port == Some(0) {
        faults.add(
            "spec.ingress.port",
            "must be from 1 to 65535, not 0",
            "remove the field to let Keelway choose a port",
        );
    }
}

fn check_host(host: Option<&str>, faults: &mut FaultCollector) {
    const FIELD: &str = "spec.endpoint.host";
    let Some(host) = host else { return };
    if host.parse::<IpAddr>().is_ok() {
        faults.add(
            FIELD,
            format!("must be a DNS name, not the address {host}"),
            "add the address to spec.controlPlane.kubeAPIServer.extraSANs instead",
        );
    } else if !is_dns_name(host) {
        faults.add(
            FIELD,
            format!("{host:?} is not a DNS name"),
            "write a name such as api.example.com, without scheme and port",
        );
    }
}

pub(super) fn check_registry(registry: Option<&str>, faults: &mut FaultCollector) {
    let Some(registry) = registry else { return };
    if !is_registry(registry) {
        faults.add(
            "spec.images.registry",
            format!("{registry:?} is not a registry"),
            "write HOST, HOST:PORT or HOST/PATH, in lowercase and without a scheme, such as registry.example.com/mirror",
        );
    }
}

pub(super) fn check_overrides(overrides: &[String], faults: &mut FaultCollector) {
    for (index, text) in overrides.iter().enumerate() {
        let place = item("spec.images.overrides", index);
        match ImageOverride::parse(text).filter(|found| is_registry(found.registry)) {
            None => faults.add(
                &place,
                format!("{text:?} is not an image with a tag and a digest"),
                "write REGISTRY/NAME:TAG@sha256:DIGEST, such as registry.example.com/kube-apiserver:v1.37.0@sha256:.. with all 64 digits",
            ),
            Some(ImageOverride { name, .. }) if !image_override::NAMES.contains(&name) => faults.add(
                &place,
                format!("Keelway runs no image of this name: {text:?}"),
                suggestion(name, &image_override::NAMES),
            ),
            Some(_) => {}
        }
    }
}

fn pull_secrets(namespace: &str, references: &[LocalSecretReference], faults: &mut FaultCollector) -> Vec<SecretName> {
    for (index, reference) in references.iter().enumerate().filter(|(_, reference)| !is_subdomain(&reference.name)) {
        let field = field(&item("spec.images.pullSecrets", index), "name");
        let problem = format!("{:?} is not an RFC 1123 subdomain", reference.name);
        faults.add(&field, problem, "write the name of a Secret of the type kubernetes.io/dockerconfigjson");
    }
    let name =
        |reference: &LocalSecretReference| SecretName { namespace: namespace.to_owned(), name: reference.name.clone() };
    references.iter().map(name).collect()
}

fn is_registry(text: &str) -> bool {
    let (authority, path) = match text.split_once('/') {
        Some((authority, path)) => (authority, Some(path)),
        None => (text, None),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good_host = is_subdomain(host) || bracketed.is_some_and(|v6| v6.parse::<IpAddr>().is_ok());
    good_host
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
        && path.is_none_or(|path| path.trim_end_matches('/').split('/').all(is_component))
}

/// Returns whether the text is a component of a repository's path (OCI distribution, `[a-z0-9]+` with separators between).
fn is_component(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(edge) && text.ends_with(edge) && text.chars().all(|c| edge(c) || matches!(c, '.' | '_' | '-'))
}

fn check_lives(lives: &CertificatesSpec, faults: &mut FaultCollector) {
    let each = [
        ("spec.certificates.componentTTL", lives.component_ttl),
        ("spec.certificates.workerTTL", lives.worker_ttl),
        ("spec.certificates.adminTTL", lives.admin_ttl),
        ("spec.certificates.authorityTTL", lives.authority_ttl),
    ];
    let pauses = [
        ("spec.certificates.workerGrace", lives.worker_grace),
        ("spec.certificates.rotationDeadline", lives.rotation_deadline),
    ];
    for (field, pause) in pauses.into_iter().filter(|(_, pause)| *pause > LONGEST_LIFE) {
        faults.add(field, format!("must be at most {LONGEST_LIFE}, not {pause}"), "reduce it");
    }
    for (field, life) in each {
        if life < SHORTEST_LIFE {
            faults.add(
                field,
                format!("must be at least {SHORTEST_LIFE}, not {life}"),
                "increase it: Keelway needs time to renew certificates",
            );
        } else if life > LONGEST_LIFE {
            faults.add(field, format!("must be at most {LONGEST_LIFE}, not {life}"), "reduce it");
        } else if life > lives.authority_ttl {
            faults.add(
                field,
                format!("must not be longer than authorityTTL ({}), but is {life}", lives.authority_ttl),
                "reduce it, or increase authorityTTL",
            );
        }
    }
}
