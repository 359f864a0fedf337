//! The keys and certificates that a cluster needs, after "PKI certificates and requirements" of the Kubernetes documentation.

use alloc::{
    collections::BTreeMap,
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
    jiff::Timestamp,
    machine::sha256_hex,
    name::{ClusterId, ClusterRef, PodName},
    reserved,
    role::Role,
    rotation::{RotatedKey, RotationPhase},
    validated::ValidatedCluster,
    worker::CLUSTER_CONTROLLER_USER,
};
use keelway_fleet::names;

use crate::{
    AuthorityGeneration, CertificateSeen, CertificateSubject, MintRequest, PassObservation, WaitBlocker, WaitKind,
    WaitSubject, Waiting,
    access::first_administrator,
    authorities::ended,
    certificate_subject::{client, holds_at, matches_subject, server},
    hosting::HOST_SECRET,
    minted::is_next,
    plan::Plan,
    pod::gateway_streams::TUNNEL_CERTIFICATE,
    secret_names::{
        API_SERVER_NAME, AUTHORITIES, AUTHORITY, DRIVER_SECRET, EGRESS_NAME, ENCRYPTION, ETCD, FRONT_PROXY,
        GATEWAY_NAME, INFRASTRUCTURE, KUBERNETES, PREVIOUS_AUTHORITY, SERVICE_ACCOUNT, SNAPSHOTS, WIREGUARD,
        common_name,
    },
    tenant::Tenant,
    world::ValidatedDocuments,
};

/// The longest lifetime of the certificate with which an ingress answers in sleep. Its key is on a public machine.
const IN_SLEEP_TTL: Span = Span::hours(720);

struct DesiredCertificate<'a> {
    secret: &'a str,
    name: &'static str,
    authority: &'static str,
    generation: AuthorityGeneration,
    subject: CertificateSubject,
}

/// The certificates that are due and not minted because the cluster is paused.
pub(crate) type OverdueCertificates = BTreeMap<ClusterRef, Vec<String>>;

/// The contents of one certificate of a cluster, by Secret and name.
type NamedCertificate<'a> = ((&'a str, &'a str), &'a CertificateSeen);

/// Requests each key that a cluster never had, and each certificate that is missing, has other contents than it should, or has reached two
/// thirds of its lifetime.
///
/// Nothing is requested for paused clusters. Returns the certificates that they would need.
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
        let shown = shown_generation(&tenant, seen, now);
        let seen = certificates_of(seen, tenant.id);
        let public = ingress_addresses(&tenant, world);
        let wanted = desired(&tenant, world, (&public, shown));
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
        let lifetime =
            |want: &DesiredCertificate| if is_of_ingress(&tenant, want) { ttl.min(IN_SLEEP_TTL) } else { ttl };
        mint.extend(due.map(|want| {
            let ttl = lifetime(&want);
            want.request(tenant.id, ttl)
        }));
        mint.extend(wireguard_keys(&tenant));
    }
    plan.waiting.extend(blocked);
    overdue
}

/// The certificates of a cluster, in the present state of its components.
fn desired<'a>(
    tenant: &'a Tenant,
    world: &'a ValidatedDocuments,
    (public, shown): (&'a [IpAddr], AuthorityGeneration),
) -> impl Iterator<Item = DesiredCertificate<'a>> {
    let sites = tenant.components.iter().map(move |(pod, component)| CertificateInputs {
        world,
        public,
        shown,
        cluster: tenant.cluster,
        pod,
        spec: &component.spec,
    });
    let is_asleep = tenant.document.spec.asleep && tenant.document.is_sleeping();
    let drivers = match world.hosting() {
        None if is_asleep => Vec::new(),
        Some(_) => vec![first_administrator_of_host()],
        None => vec![driver(), driver_of_etcd()],
    };
    let needed = move |site: &CertificateInputs| !is_asleep || site.spec.role == Role::Ingress;
    let in_sleep = tenant.document.is_sleeping();
    drivers.into_iter().chain(sites.filter(needed).flat_map(move |site| site.certificates(in_sleep)))
}

/// The generation that signs what API servers and gateways present to users, pods, and workers: the one that all of them trust. They trust the next one
/// once a person has completed its rotation. If the previous one has ended, nobody verifies its certificates.
fn shown_generation(tenant: &Tenant, seen: &PassObservation, now: Timestamp) -> AuthorityGeneration {
    let rotation = tenant.document.running_rotation(RotatedKey::KubernetesAuthority);
    let is_open = rotation.is_some_and(|rotation| match rotation.phase {
        // The last pass was interrupted after it had saved the Secret.
        RotationPhase::Announcing => tenant.fingerprint(KUBERNETES).is_some_and(|active| is_next(rotation, &active)),
        RotationPhase::Activating | RotationPhase::Reencrypting | RotationPhase::Prepared => true,
        RotationPhase::Retiring | RotationPhase::Completed => false,
    });
    let previous = (SecretName::of(tenant.id, KUBERNETES), PREVIOUS_AUTHORITY.to_string());
    let has_ended = || seen.certificates.get(&previous).is_some_and(|previous| previous.not_after <= now);
    if is_open && tenant.value(KUBERNETES, "previous.key").is_some() && !has_ended() {
        AuthorityGeneration::Previous
    } else {
        AuthorityGeneration::Active
    }
}

/// Whether a certificate is still to be issued by the generation of an authority that should sign it.
pub(crate) fn awaits_issue(
    tenant: &Tenant,
    world: &ValidatedDocuments,
    seen: &PassObservation,
    (authority, now): (&str, Timestamp),
) -> bool {
    let shown = shown_generation(tenant, seen, now);
    let (seen, public) = (certificates_of(seen, tenant.id), ingress_addresses(tenant, world));
    let mut wanted = desired(tenant, world, (&public, shown)).filter(|want| want.authority == authority);
    wanted.any(|want| !want.found_in(&seen).is_some_and(|found| found.is_signed_by(want.authority_in(&seen))))
}

/// Whether it is of an ingress, which has a certificate only in sleep.
fn is_of_ingress(tenant: &Tenant, want: &DesiredCertificate) -> bool {
    tenant.of_role(Role::Ingress).any(|(pod, _)| pod.component.as_str() == want.secret)
}

/// Waits for the authorities and keys of a cluster that a person has to restore.
fn missing_authorities<'a>(tenant: &'a Tenant) -> impl Iterator<Item = Waiting> + use<'a> {
    tenant.unusable_secrets.into_iter().flatten().map(|(secret, reason)| {
        let subject = WaitSubject::ClusterSecret(tenant.cluster.reference.clone(), secret);
        let blocker = WaitBlocker::UnusableSecret { cluster: tenant.id.clone(), secret, reason: *reason };
        Waiting::of_cluster(subject, WaitKind::Blocked, blocker)
    })
}

/// The public addresses of the machines with the cluster's ingresses.
fn ingress_addresses(tenant: &Tenant, world: &ValidatedDocuments) -> Vec<IpAddr> {
    let machines =
        tenant.of_role(Role::Ingress).filter_map(|(_, ingress)| world.machines.get(&ingress.spec.hypervisor));
    machines.flat_map(|machine| machine.public.iter().copied()).collect()
}

/// Sorted by Secret and name.
fn certificates_of<'a>(seen: &'a PassObservation, id: &ClusterId) -> Vec<NamedCertificate<'a>> {
    let from = (SecretName::of(id, ""), String::new());
    let namespace = from.0.namespace.clone();
    let of_cluster = seen.certificates.range(from..).take_while(|((secret, _), _)| secret.namespace == namespace);
    of_cluster.map(|((secret, name), found)| ((secret.name.as_str(), name.as_str()), found)).collect()
}

fn named<'s>(seen: &[NamedCertificate<'s>], secret: &str, name: &str) -> Option<&'s CertificateSeen> {
    let place = seen.binary_search_by_key(&(secret, name), |(name, _)| *name).ok()?;
    seen.get(place).map(|(_, found)| *found)
}

fn authorities(tenant: &Tenant) -> Vec<MintRequest> {
    let ttl = tenant.cluster.certificates.authority_ttl;
    let is_minted = |name: &str| !tenant.has_secret(name) && !tenant.cannot_use(name);
    let missing = |name: &str| is_minted(name).then(|| SecretName::of(tenant.id, name));
    let authority = |name: &str| {
        missing(name).map(|secret| {
            let common_name = common_name(name).to_string();
            MintRequest::Authority { secret, common_name, revokes: false, ttl }
        })
    };
    let sealing = tenant.document.spec.etcd.snapshots.as_ref().map(|_| SNAPSHOTS);
    AUTHORITIES
        .into_iter()
        .filter_map(authority)
        .chain(missing(SERVICE_ACCOUNT).map(|secret| MintRequest::ServiceAccountKey { secret }))
        .chain(missing(ENCRYPTION).map(|secret| MintRequest::EncryptionKey { secret }))
        .chain(sealing.and_then(&missing).map(|secret| MintRequest::EncryptionKey { secret }))
        .collect()
}

/// Requests a key for each gateway without one. A gateway keeps its key for life, because workers identify it by the key.
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
        // If the authority is lost, the certificates that it signed are not valid under its successor.
        if !tenant.has_secret(self.authority) {
            return true;
        }
        let authority = self.authority_in(seen);
        self.found_in(seen).is_none_or(|found| {
            !holds_at(found, authority, now) || !found.is_signed_by(authority) || !matches_subject(found, &self.subject)
        })
    }

    fn found_in<'s>(&self, seen: &[NamedCertificate<'s>]) -> Option<&'s CertificateSeen> {
        named(seen, self.secret, self.name)
    }

    /// The certificate of its authority.
    fn authority_in<'s>(&self, seen: &[NamedCertificate<'s>]) -> Option<&'s CertificateSeen> {
        let generation = match self.generation {
            AuthorityGeneration::Active => AUTHORITY,
            AuthorityGeneration::Previous => PREVIOUS_AUTHORITY,
        };
        named(seen, self.authority, generation)
    }

    fn request(self, id: &ClusterId, ttl: Span) -> MintRequest {
        let secret = SecretName::of(id, self.secret);
        let ttl = shortened(ttl, &secret);
        MintRequest::Certificate {
            secret,
            name: self.name.to_string(),
            authority: SecretName::of(id, self.authority),
            generation: self.generation,
            subject: self.subject,
            ttl,
        }
    }
}

/// The lifetime of the certificates of one Secret: between two thirds of the configured lifetime and all of it. The certificates of a cluster
/// are minted at the same time. The spread prevents that all its replicas lose theirs in the same second if no driver renews them.
fn shortened(ttl: Span, secret: &SecretName) -> Span {
    let digest = sha256_hex(format!("{}/{}", secret.namespace, secret.name).as_bytes());
    let share = digest.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
    // `share` is below 2^32.
    let less = (u128::from(ttl.seconds() / 3) * u128::from(share)) >> 32;
    Span::of_seconds(ttl.seconds() - u64::try_from(less).unwrap_or_default())
}

fn driver() -> DesiredCertificate<'static> {
    DesiredCertificate {
        secret: DRIVER_SECRET,
        name: "client",
        authority: KUBERNETES,
        generation: AuthorityGeneration::Active,
        subject: client(crate::secret_names::DRIVER, &[]),
    }
}

fn driver_of_etcd() -> DesiredCertificate<'static> {
    DesiredCertificate {
        secret: DRIVER_SECRET,
        name: "etcd-client",
        authority: ETCD,
        generation: AuthorityGeneration::Active,
        subject: client(crate::secret_names::DRIVER, &[]),
    }
}

/// The identity that applies the first bindings of a fleet in a Kubernetes cluster, where no driver does.
fn first_administrator_of_host() -> DesiredCertificate<'static> {
    DesiredCertificate {
        secret: HOST_SECRET,
        name: "client",
        authority: KUBERNETES,
        generation: AuthorityGeneration::Active,
        subject: first_administrator(),
    }
}

/// A component with everything that its certificates depend on.
struct CertificateInputs<'a> {
    world: &'a ValidatedDocuments,
    public: &'a [IpAddr],
    shown: AuthorityGeneration,
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
        let generation = AuthorityGeneration::Active;
        DesiredCertificate { secret: self.pod.component.as_str(), name, authority, generation, subject }
    }

    /// A certificate of a server for users, pods and workers.
    fn shown(&self, name: &'static str, subject: CertificateSubject) -> DesiredCertificate<'a> {
        DesiredCertificate { generation: self.shown, ..self.wanted(name, KUBERNETES, subject) }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.world.machines.get(&self.spec.hypervisor).map(|machine| machine.private.clone()).unwrap_or_default()
    }

    fn certificates(&self, in_sleep: bool) -> Vec<DesiredCertificate<'a>> {
        match self.spec.role {
            Role::Etcd => self.etcd(),
            Role::KubeApiserver => self.kube_apiserver(),
            Role::KubeControllerManager => self.controller("system:kube-controller-manager"),
            Role::KubeScheduler => self.controller("system:kube-scheduler"),
            Role::ClusterController => vec![self.user(CLUSTER_CONTROLLER_USER)],
            Role::FleetController => vec![self.user(names::CONTROLLER_USER)],
            // It answers in the place of the API servers.
            Role::Ingress if in_sleep => vec![self.shown("server", self.api_serving())],
            Role::Ingress => Vec::new(),
            Role::Gateway => vec![
                self.user(crate::secret_names::GATEWAY),
                self.wanted("server", INFRASTRUCTURE, server("gateway", vec![GATEWAY_NAME.to_string()], Vec::new())),
                self.shown(TUNNEL_CERTIFICATE, server("gateway", vec![GATEWAY_NAME.to_string()], Vec::new())),
            ],
        }
    }

    /// etcd dials itself and its peers with its serving certificates, so they are valid for both usages.
    fn etcd(&self) -> Vec<DesiredCertificate<'a>> {
        let name = self.pod.component.to_string();
        let names = self.world.hosting().map_or_else(
            || vec![name.clone()],
            |hosting| hosting.members().flat_map(|(name, host)| [name, host]).collect(),
        );
        let both = || CertificateSubject { client: true, ..server(&name, names.clone(), self.addresses()) };
        vec![self.wanted("server", ETCD, both()), self.wanted("peer", ETCD, both())]
    }

    fn kube_apiserver(&self) -> Vec<DesiredCertificate<'a>> {
        let egress = || self.wanted("egress", INFRASTRUCTURE, client(EGRESS_NAME, &[]));
        let of_kubelets =
            || self.wanted("kubelet-client", KUBERNETES, client(crate::secret_names::KUBELET_CLIENT, &[]));
        let mut wanted = vec![
            self.shown("server", self.api_serving()),
            self.wanted("etcd-client", ETCD, client("kube-apiserver-etcd-client", &[])),
        ];
        wanted.extend((!self.cluster.is_fleet).then(of_kubelets));
        wanted.push(self.wanted("front-proxy-client", FRONT_PROXY, client("front-proxy-client", &[])));
        wanted.extend(self.cluster.vpn_enabled.then(egress));
        wanted
    }

    /// A client certificate for the API, and a certificate for its health and metrics port on loopback.
    fn controller(&self, user: &str) -> Vec<DesiredCertificate<'a>> {
        let name = self.spec.role.to_string();
        let loopback = vec![IpAddr::from([127, 0, 0, 1])];
        vec![self.user(user), self.wanted("server", INFRASTRUCTURE, server(&name, vec![name.clone()], loopback))]
    }

    /// The client certificate of a component inside the cluster.
    fn user(&self, user: &str) -> DesiredCertificate<'a> {
        self.wanted("client", KUBERNETES, client(user, &[]))
    }

    fn api_serving(&self) -> CertificateSubject {
        server("kube-apiserver", self.api_names(), self.api_addresses())
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

    /// Its own address, the address of the `kubernetes` Service, the address of the API on workers, the addresses of the cluster's ingresses, and
    /// the user's. If a pass places an ingress on another machine, it mints a new certificate, which API servers read without a restart.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_have_lifetimes_of_their_own_between_two_thirds_and_all_of_the_configured_one() {
        let ttl = Span::hours(24 * 365);
        let of = |namespace: &str, name: &str| {
            shortened(ttl, &SecretName { namespace: namespace.into(), name: name.into() }).seconds()
        };
        let names: Vec<String> = (0..100).map(|index| format!("kube-apiserver-{index}")).collect();
        let mut lifetimes: Vec<u64> = names.iter().map(|name| of("c1", name)).collect();
        assert_eq!(lifetimes[7], of("c1", "kube-apiserver-7"), "it stays the same");
        assert_ne!(lifetimes[7], of("c2", "kube-apiserver-7"), "clusters differ, too");
        lifetimes.sort_unstable();
        let (all, third) = (ttl.seconds(), ttl.seconds() / 3);
        assert!(lifetimes.iter().all(|lifetime| (all - third..=all).contains(lifetime)), "{lifetimes:?}");
        // They are spread over the third, and not in one half of it.
        assert!(lifetimes[0] < all - third * 3 / 4 && lifetimes[99] > all - third / 4, "{lifetimes:?}");
        lifetimes.dedup();
        assert_eq!(lifetimes.len(), 100, "each has a lifetime of its own");
    }
}
