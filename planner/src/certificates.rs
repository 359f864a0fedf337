//! Which keys and certificates a cluster wants, after "PKI certificates and requirements" of Kubernetes' documentation.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::net::IpAddr;

use keelway_api::{
    Documents, Secret,
    component::ComponentSpec,
    documents::SecretName,
    duration::Span,
    jiff::Timestamp,
    name::{ClusterId, PodName},
    role::Role,
    validated::ValidatedCluster,
};

use crate::{CertificateSeen, MintRequest, Observation, Subject, plan::Plan, world::World};

/// The Secret of the authority that Kubernetes' own certificates come from.
pub const KUBERNETES: &str = "kubernetes-ca";
/// The Secret of etcd's authority.
pub(crate) const ETCD: &str = "etcd-ca";
/// The Secret of the aggregation layer's authority.
pub(crate) const FRONT_PROXY: &str = "front-proxy-ca";
/// The Secret of the authority for everything between Keelway's own parts.
pub(crate) const INFRASTRUCTURE: &str = "infrastructure-ca";
/// The Secret of the service-account key.
pub(crate) const SERVICE_ACCOUNT: &str = "service-account";
/// The Secret of the key that encrypts Secrets at rest.
pub(crate) const ENCRYPTION: &str = "encryption";
/// The Secret of the pass's own identity.
pub const DRIVER_SECRET: &str = "driver";

/// The name that every API server's certificate holds, whatever its addresses are.
pub(crate) const API_SERVER_NAME: &str = "kubernetes";

/// What a Secret of a cluster holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// The generations of an authority.
    Authority,
    /// The generations of the service-account key.
    ServiceAccountKey,
    /// The generations of the key that encrypts Secrets at rest.
    EncryptionKey,
    /// Certificates with their keys.
    Certificates,
}

/// What the Secret of this name holds.
#[must_use]
pub fn holds(secret: &str) -> Holds {
    match secret {
        KUBERNETES | ETCD | FRONT_PROXY | INFRASTRUCTURE => Holds::Authority,
        SERVICE_ACCOUNT => Holds::ServiceAccountKey,
        ENCRYPTION => Holds::EncryptionKey,
        _ => Holds::Certificates,
    }
}

/// One certificate that is wanted.
struct Wanted {
    secret: &'static str,
    component: Option<PodName>,
    name: &'static str,
    authority: &'static str,
    subject: Subject,
}

/// Asks for each key that is not there, and for each certificate that is not there, says something else than it should, or
/// has lived two thirds of its life.
pub(crate) fn plan_certificates(plan: &mut Plan, world: &World, seen: &Observation, now: Timestamp) {
    for (name, (id, cluster)) in &world.clusters {
        if plan.documents.clusters.get(name).is_none_or(keelway_api::Cluster::deleted) {
            continue;
        }
        let mut wanted = authorities(&plan.documents, id, cluster);
        let mut certificates = vec![driver(), driver_of_etcd()];
        for (pod, component) in plan.documents.components_of(id) {
            let site = Site { world, cluster, pod, spec: &component.spec };
            certificates.extend(site.certificates());
        }
        let ttl = cluster.certificates.component_ttl;
        let due = certificates.into_iter().filter(|want| want.is_due(id, &plan.documents, seen, now));
        wanted.extend(due.map(|want| want.request(id, ttl)));
        plan.mint.extend(wanted);
    }
}

fn authorities(documents: &Documents, id: &ClusterId, cluster: &ValidatedCluster) -> Vec<MintRequest> {
    let ttl = cluster.certificates.authority_ttl;
    let missing = |name: &str| {
        let secret = SecretName::of(id, name);
        (!documents.secrets.contains_key(&secret)).then_some(secret)
    };
    let authority = |(name, common_name): (&str, &str)| {
        missing(name).map(|secret| MintRequest::Authority { secret, common_name: common_name.to_string(), ttl })
    };
    [(KUBERNETES, "kubernetes"), (ETCD, "etcd"), (FRONT_PROXY, "front-proxy"), (INFRASTRUCTURE, "infrastructure")]
        .into_iter()
        .filter_map(authority)
        .chain(missing(SERVICE_ACCOUNT).map(|secret| MintRequest::ServiceAccountKey { secret }))
        .chain(missing(ENCRYPTION).map(|secret| MintRequest::EncryptionKey { secret }))
        .collect()
}

impl Wanted {
    fn secret(&self, id: &ClusterId) -> SecretName {
        let name = self.component.as_ref().map_or(self.secret, |pod| pod.component.as_str());
        SecretName::of(id, name)
    }

    fn is_due(&self, id: &ClusterId, documents: &Documents, seen: &Observation, now: Timestamp) -> bool {
        let secret = self.secret(id);
        if data(documents.secrets.get(&secret), &format!("{}.key", self.name)).is_none() {
            return true;
        }
        // What a lost authority signed is worth nothing under the next one.
        if !documents.secrets.contains_key(&SecretName::of(id, self.authority)) {
            return true;
        }
        seen.certificates
            .get(&(secret, self.name.to_string()))
            .is_none_or(|found| found.renew_at <= now || !says(found, &self.subject))
    }

    fn request(self, id: &ClusterId, ttl: Span) -> MintRequest {
        MintRequest::Certificate {
            secret: self.secret(id),
            name: self.name.to_string(),
            authority: SecretName::of(id, self.authority),
            subject: self.subject,
            ttl,
        }
    }
}

fn says(found: &CertificateSeen, wanted: &Subject) -> bool {
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<String>>();
    let addresses = |list: &[IpAddr]| list.iter().copied().collect::<BTreeSet<IpAddr>>();
    found.common_name == wanted.common_name
        && set(&found.organizations) == set(&wanted.organizations)
        && set(&found.dns_names) == set(&wanted.dns_names)
        && addresses(&found.addresses) == addresses(&wanted.addresses)
}

pub(crate) fn client(common_name: &str, organizations: &[&str]) -> Subject {
    Subject {
        common_name: common_name.to_string(),
        organizations: organizations.iter().map(ToString::to_string).collect(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        server: false,
        client: true,
    }
}

fn server(common_name: &str, dns_names: Vec<String>, addresses: Vec<IpAddr>) -> Subject {
    Subject {
        common_name: common_name.to_string(),
        organizations: Vec::new(),
        dns_names,
        addresses,
        server: true,
        client: false,
    }
}

fn driver() -> Wanted {
    Wanted {
        secret: DRIVER_SECRET,
        component: None,
        name: "client",
        authority: KUBERNETES,
        subject: client(crate::access::DRIVER, &[]),
    }
}

fn driver_of_etcd() -> Wanted {
    Wanted {
        secret: DRIVER_SECRET,
        component: None,
        name: "etcd-client",
        authority: ETCD,
        subject: client(crate::access::DRIVER, &[]),
    }
}

/// One component with what its certificates depend on.
struct Site<'a> {
    world: &'a World,
    cluster: &'a ValidatedCluster,
    pod: &'a PodName,
    spec: &'a ComponentSpec,
}

impl Site<'_> {
    fn wanted(&self, name: &'static str, authority: &'static str, subject: Subject) -> Wanted {
        Wanted { secret: "", component: Some(self.pod.clone()), name, authority, subject }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.world.machines.get(&self.spec.hypervisor).map(|machine| machine.private.clone()).unwrap_or_default()
    }

    fn certificates(&self) -> Vec<Wanted> {
        match self.spec.role {
            Role::Etcd => self.etcd(),
            Role::KubeApiserver => self.kube_apiserver(),
            Role::KubeControllerManager => self.controller("system:kube-controller-manager"),
            Role::KubeScheduler => self.controller("system:kube-scheduler"),
            Role::Ingress => Vec::new(),
        }
    }

    /// etcd dials itself and its peers with its serving certificates, so they are for both usages.
    fn etcd(&self) -> Vec<Wanted> {
        let name = self.pod.component.to_string();
        let both = || Subject { client: true, ..server(&name, vec![name.clone()], self.addresses()) };
        vec![self.wanted("server", ETCD, both()), self.wanted("peer", ETCD, both())]
    }

    fn kube_apiserver(&self) -> Vec<Wanted> {
        let serving = server("kube-apiserver", self.api_names(), self.api_addresses());
        vec![
            self.wanted("server", KUBERNETES, serving),
            self.wanted("etcd-client", ETCD, client("kube-apiserver-etcd-client", &[])),
            self.wanted("kubelet-client", KUBERNETES, client(crate::access::KUBELET_CLIENT, &[])),
            self.wanted("front-proxy-client", FRONT_PROXY, client("front-proxy-client", &[])),
        ]
    }

    /// A client certificate for the API, and one for its own health and metrics port on loopback.
    fn controller(&self, user: &str) -> Vec<Wanted> {
        let name = self.spec.role.to_string();
        let loopback = vec![IpAddr::from([127, 0, 0, 1])];
        vec![
            self.wanted("client", KUBERNETES, client(user, &[])),
            self.wanted("server", INFRASTRUCTURE, server(&name, vec![name.clone()], loopback)),
        ]
    }

    fn api_names(&self) -> Vec<String> {
        let domain = &self.cluster.domain;
        let mut names = vec![
            API_SERVER_NAME.to_string(),
            "kubernetes.default".to_string(),
            "kubernetes.default.svc".to_string(),
            format!("kubernetes.default.svc.{domain}"),
        ];
        for name in self.cluster.host.iter().chain(&self.cluster.extra_names) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Its own address, the `kubernetes` Service's, those of all public hypervisors (an ingress may move to any of them
    /// without a new certificate), and the user's.
    fn api_addresses(&self) -> Vec<IpAddr> {
        let services = self.cluster.services.iter().filter_map(|range| range.hosts().next());
        let public =
            self.world.with_role(Role::Ingress.row().runs_on).flat_map(|machine| machine.public.iter().copied());
        let all: BTreeSet<IpAddr> = self
            .addresses()
            .into_iter()
            .chain(services)
            .chain(public)
            .chain(self.cluster.extra_addresses.iter().copied())
            .collect();
        all.into_iter().collect()
    }
}

/// A value of a Secret, decoded.
pub(crate) fn data<'a>(secret: Option<&'a Secret>, key: &str) -> Option<&'a [u8]> {
    let data: &BTreeMap<_, _> = secret?.data.as_ref()?;
    data.get(key).map(|value| value.0.as_slice())
}
