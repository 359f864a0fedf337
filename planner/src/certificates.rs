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
    component::ComponentSpec,
    documents::SecretName,
    duration::Span,
    jiff::{SignedDuration, Timestamp},
    machine::sha256_hex,
    name::{ClusterId, ClusterRef, PodName},
    reserved,
    role::Role,
    validated::ValidatedCluster,
    worker::CLUSTER_CONTROLLER_USER,
};

use crate::{
    CertificateSeen, CertificateSubject, MintRequest, PassObservation, authorities::ended, plan::Plan, tenant::Tenant,
    world::ValidatedDocuments,
};

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
pub(crate) const ENCRYPTION: &str = keelway_api::documents::ENCRYPTION_SECRET;
/// The Secret of the pass's own identity.
pub const DRIVER_SECRET: &str = "driver";

pub use keelway_api::worker::API_SERVER_NAME;

/// The name that every gateway's certificate holds: who asks one knows it by its address only, which is no part of it.
pub(crate) const GATEWAY_NAME: &str = "gateway.keelway";
/// Whom gateways let ask for connections.
pub(crate) const EGRESS_NAME: &str = "keelway:egress";
/// The key pair of a gateway within its Secret.
pub const WIREGUARD: &str = "wireguard";

/// What a Secret of a cluster holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretContents {
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
pub fn holds(secret: &str) -> SecretContents {
    match secret {
        KUBERNETES | ETCD | FRONT_PROXY | INFRASTRUCTURE => SecretContents::Authority,
        SERVICE_ACCOUNT => SecretContents::ServiceAccountKey,
        ENCRYPTION => SecretContents::EncryptionKey,
        _ => SecretContents::Certificates,
    }
}

/// One certificate that is wanted.
struct DesiredCertificate<'a> {
    secret: &'a str,
    name: &'static str,
    authority: &'static str,
    subject: CertificateSubject,
}

/// Certificates that paused clusters do without.
pub(crate) type OverdueCertificates = BTreeMap<ClusterRef, Vec<String>>;

/// What one certificate of a cluster says, by Secret and name.
type NamedCertificate<'a> = ((&'a str, &'a str), &'a CertificateSeen);

/// Asks for each key that a cluster never had, and for each certificate that is not there, says something else than it should, or
/// has lived two thirds of its life.
///
/// Of paused clusters nothing is asked for: returns what would be.
pub(crate) fn plan_certificates(
    plan: &mut Plan,
    world: &ValidatedDocuments,
    seen: &PassObservation,
    now: Timestamp,
) -> OverdueCertificates {
    let mut overdue = OverdueCertificates::new();
    let mut blocked = Vec::new();
    let Plan { documents, mint, .. } = plan;
    for tenant in Tenant::all(documents, world).filter(|tenant| !tenant.document.deleted()) {
        let signs = |want: &DesiredCertificate| ended(seen, tenant.id, want.authority, now).is_none();
        let seen = certificates_of(seen, tenant.id);
        let public = ingress_addresses(&tenant, world);
        let sites = tenant.components.iter().map(|(pod, component)| CertificateInputs {
            world,
            public: &public,
            cluster: tenant.cluster,
            pod,
            spec: &component.spec,
        });
        let wanted = [driver(), driver_of_etcd()].into_iter().chain(sites.flat_map(|site| site.certificates()));
        let signed = wanted.filter(|want| signs(want) && !tenant.cannot_use(want.authority));
        let due = signed.filter(|want| want.is_due(&tenant, &seen, now));
        if tenant.cluster.paused {
            let due: Vec<String> = due.map(|want| format!("{}/{}", want.secret, want.name)).collect();
            overdue.insert(tenant.cluster.reference.clone(), due);
            continue;
        }
        blocked.extend(missing_authorities(&tenant));
        mint.extend(authorities(&tenant));
        let ttl = tenant.cluster.certificates.component_ttl;
        mint.extend(due.map(|want| want.request(tenant.id, ttl)));
        mint.extend(wireguard_keys(&tenant));
    }
    for (cluster, secret, on) in blocked {
        plan.block_in(&cluster, &format!("{cluster}/{secret}"), on);
    }
    overdue
}

/// The authorities and keys of a cluster that somebody has to bring back, each with what is waited for.
fn missing_authorities<'a>(tenant: &'a Tenant) -> impl Iterator<Item = (ClusterRef, &'static str, String)> + use<'a> {
    let unusable = tenant.unusable_secrets.into_iter().flatten();
    unusable.map(|(secret, why)| (tenant.cluster.reference.clone(), *secret, why.blocker_text(tenant.id, secret)))
}

/// The public addresses of the machines with the cluster's ingresses.
fn ingress_addresses(tenant: &Tenant, world: &ValidatedDocuments) -> Vec<IpAddr> {
    let machines =
        tenant.of_role(Role::Ingress).filter_map(|(_, ingress)| world.machines.get(&ingress.spec.hypervisor));
    machines.flat_map(|machine| machine.public.iter().copied()).collect()
}

/// In order.
fn certificates_of<'a>(seen: &'a PassObservation, id: &ClusterId) -> Vec<NamedCertificate<'a>> {
    let from = (SecretName::of(id, ""), String::new());
    let namespace = from.0.namespace.clone();
    let of_cluster = seen.certificates.range(from..).take_while(|((secret, _), _)| secret.namespace == namespace);
    of_cluster.map(|((secret, name), found)| ((secret.name.as_str(), name.as_str()), found)).collect()
}

fn authorities(tenant: &Tenant) -> Vec<MintRequest> {
    let ttl = tenant.cluster.certificates.authority_ttl;
    let is_minted = |name: &str| !tenant.has_secret(name) && !tenant.cannot_use(name);
    let missing = |name: &str| is_minted(name).then(|| SecretName::of(tenant.id, name));
    let authority = |(name, common_name): (&str, &str)| {
        missing(name).map(|secret| {
            let common_name = common_name.to_string();
            MintRequest::Authority { secret, common_name, revokes: false, ttl }
        })
    };
    [(KUBERNETES, "kubernetes"), (ETCD, "etcd"), (FRONT_PROXY, "front-proxy"), (INFRASTRUCTURE, "infrastructure")]
        .into_iter()
        .filter_map(authority)
        .chain(missing(SERVICE_ACCOUNT).map(|secret| MintRequest::ServiceAccountKey { secret }))
        .chain(missing(ENCRYPTION).map(|secret| MintRequest::EncryptionKey { secret }))
        .collect()
}

/// Of gateways that have none yet. A key stays for the gateway's life: workers know it by it.
fn wireguard_keys(tenant: &Tenant) -> Vec<MintRequest> {
    let gateways = tenant.of_role(Role::Gateway).map(|(pod, _)| pod.component.as_str());
    let missing = gateways.filter(|gateway| !tenant.has_pair_of(gateway, WIREGUARD));
    let request = |gateway: &str| MintRequest::WireGuardKey {
        secret: SecretName::of(tenant.id, gateway),
        name: WIREGUARD.to_string(),
    };
    missing.map(request).collect()
}

impl DesiredCertificate<'_> {
    fn is_due(&self, tenant: &Tenant, seen: &[NamedCertificate], now: Timestamp) -> bool {
        if !tenant.has_key_of(self.secret, self.name) {
            return true;
        }
        // What a lost authority signed is worth nothing under the next one.
        if !tenant.has_secret(self.authority) {
            return true;
        }
        let found = |secret, name| {
            let place = seen.binary_search_by_key(&(secret, name), |(name, _)| *name).ok()?;
            seen.get(place).map(|(_, found)| *found)
        };
        let authority = found(self.authority, AUTHORITY);
        found(self.secret, self.name)
            .is_none_or(|found| !holds_at(found, authority, now) || !matches_subject(found, &self.subject))
    }

    fn request(self, id: &ClusterId, ttl: Span) -> MintRequest {
        let secret = SecretName::of(id, self.secret);
        let ttl = shortened(ttl, &secret);
        MintRequest::Certificate {
            secret,
            name: self.name.to_string(),
            authority: SecretName::of(id, self.authority),
            subject: self.subject,
            ttl,
        }
    }
}

/// The certificate of an authority within its Secret.
pub(crate) const AUTHORITY: &str = "active";

/// How far ahead the clock may have been by which a certificate was minted. A certificate begins five minutes before that, and machines may
/// be behind by as much.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Whether a certificate holds, and two thirds of its life are not over. One that holds later only was minted by a clock that was ahead; a new one
/// holds no earlier than its authority.
pub(crate) fn holds_at(found: &CertificateSeen, authority: Option<&CertificateSeen>, now: Timestamp) -> bool {
    let begins = authority.map_or(Timestamp::MIN, |authority| authority.not_before);
    let is_early = now.duration_until(found.not_before) > CLOCK_SKEW && found.not_before > begins;
    found.renew_at > now && !is_early
}

/// How long the certificates of one Secret live: two thirds of what they may, to all of it. Those of a cluster are minted at once; so its
/// replicas do not all lose theirs in one second where nobody renews them.
fn shortened(ttl: Span, secret: &SecretName) -> Span {
    let digest = sha256_hex(format!("{}/{}", secret.namespace, secret.name).as_bytes());
    let share = digest.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
    // `share` is below 2^32.
    let less = (u128::from(ttl.seconds() / 3) * u128::from(share)) >> 32;
    Span::of_seconds(ttl.seconds() - u64::try_from(less).unwrap_or_default())
}

pub(crate) fn matches_subject(found: &CertificateSeen, wanted: &CertificateSubject) -> bool {
    found.common_name == wanted.common_name
        && same(&found.organizations, &wanted.organizations)
        && same(&found.dns_names, &wanted.dns_names)
        && same(&found.addresses, &wanted.addresses)
}

/// Whether two lists hold the same in any order; nearly always they do in one.
fn same<T: Ord>(found: &[T], wanted: &[T]) -> bool {
    let set = |list| -> BTreeSet<&T> { <[T]>::iter(list).collect() };
    found == wanted || set(found) == set(wanted)
}

pub(crate) fn client(common_name: &str, organizations: &[&str]) -> CertificateSubject {
    CertificateSubject {
        common_name: common_name.to_string(),
        organizations: organizations.iter().map(ToString::to_string).collect(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        server: false,
        client: true,
    }
}

fn server(common_name: &str, dns_names: Vec<String>, addresses: Vec<IpAddr>) -> CertificateSubject {
    CertificateSubject {
        common_name: common_name.to_string(),
        organizations: Vec::new(),
        dns_names,
        addresses,
        server: true,
        client: false,
    }
}

fn driver() -> DesiredCertificate<'static> {
    DesiredCertificate {
        secret: DRIVER_SECRET,
        name: "client",
        authority: KUBERNETES,
        subject: client(crate::access::DRIVER, &[]),
    }
}

fn driver_of_etcd() -> DesiredCertificate<'static> {
    DesiredCertificate {
        secret: DRIVER_SECRET,
        name: "etcd-client",
        authority: ETCD,
        subject: client(crate::access::DRIVER, &[]),
    }
}

/// One component with what its certificates depend on.
struct CertificateInputs<'a> {
    world: &'a ValidatedDocuments,
    public: &'a [IpAddr],
    cluster: &'a ValidatedCluster,
    pod: &'a PodName,
    spec: &'a ComponentSpec,
}

impl<'a> CertificateInputs<'a> {
    fn wanted(
        &self,
        name: &'static str,
        authority: &'static str,
        subject: CertificateSubject,
    ) -> DesiredCertificate<'a> {
        DesiredCertificate { secret: self.pod.component.as_str(), name, authority, subject }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.world.machines.get(&self.spec.hypervisor).map(|machine| machine.private.clone()).unwrap_or_default()
    }

    fn certificates(&self) -> Vec<DesiredCertificate<'a>> {
        match self.spec.role {
            Role::Etcd => self.etcd(),
            Role::KubeApiserver => self.kube_apiserver(),
            Role::KubeControllerManager => self.controller("system:kube-controller-manager"),
            Role::KubeScheduler => self.controller("system:kube-scheduler"),
            Role::ClusterController => vec![self.user(CLUSTER_CONTROLLER_USER)],
            Role::Ingress => Vec::new(),
            Role::Gateway => vec![
                self.user(crate::access::GATEWAY),
                self.wanted("server", INFRASTRUCTURE, server("gateway", vec![GATEWAY_NAME.to_string()], Vec::new())),
            ],
        }
    }

    /// etcd dials itself and its peers with its serving certificates, so they are for both usages.
    fn etcd(&self) -> Vec<DesiredCertificate<'a>> {
        let name = self.pod.component.to_string();
        let both = || CertificateSubject { client: true, ..server(&name, vec![name.clone()], self.addresses()) };
        vec![self.wanted("server", ETCD, both()), self.wanted("peer", ETCD, both())]
    }

    fn kube_apiserver(&self) -> Vec<DesiredCertificate<'a>> {
        let serving = server("kube-apiserver", self.api_names(), self.api_addresses());
        let egress = || self.wanted("egress", INFRASTRUCTURE, client(EGRESS_NAME, &[]));
        let mut wanted = vec![
            self.wanted("server", KUBERNETES, serving),
            self.wanted("etcd-client", ETCD, client("kube-apiserver-etcd-client", &[])),
            self.wanted("kubelet-client", KUBERNETES, client(crate::access::KUBELET_CLIENT, &[])),
            self.wanted("front-proxy-client", FRONT_PROXY, client("front-proxy-client", &[])),
        ];
        wanted.extend(self.cluster.vpn_enabled.then(egress));
        wanted
    }

    /// A client certificate for the API, and one for its own health and metrics port on loopback.
    fn controller(&self, user: &str) -> Vec<DesiredCertificate<'a>> {
        let name = self.spec.role.to_string();
        let loopback = vec![IpAddr::from([127, 0, 0, 1])];
        vec![self.user(user), self.wanted("server", INFRASTRUCTURE, server(&name, vec![name.clone()], loopback))]
    }

    /// Who a component is inside the cluster.
    fn user(&self, user: &str) -> DesiredCertificate<'a> {
        self.wanted("client", KUBERNETES, client(user, &[]))
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

    /// Its own address, the `kubernetes` Service's, the one that workers know it by, those of the cluster's ingresses, and the user's. The
    /// pass that places an ingress on another machine mints the certificate with its address, which API servers read without a restart.
    fn api_addresses(&self) -> Vec<IpAddr> {
        let services = self.cluster.services.iter().map(reserved::of_kubernetes_service);
        let workers = self.cluster.vpn.iter().map(reserved::of_api_on_workers);
        let others = services.chain(workers).chain(self.public.iter().chain(&self.cluster.extra_addresses).copied());
        let mut all: Vec<IpAddr> = self.addresses().into_iter().chain(others).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
