//! Computes when certificates expire, and when they should be renewed.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    str,
    sync::{Mutex, PoisonError},
};

use keelway_api::{
    Documents, Secret,
    documents::SecretName,
    jiff::Timestamp,
    name::{ClusterId, ClusterRef},
    role::Role,
};
use keelway_pki::{CertificateFacts, Validity};
use keelway_planner::{SecretContents, holds};

use super::{
    clusters,
    family::{MetricFamily, MetricLabel, seconds},
    hypervisors,
};

/// The dates that were read from Secrets, so that only changed Secrets are read again. Secrets are most of the documents' bytes.
#[derive(Debug, Default)]
pub(super) struct CertificateCache(Mutex<BTreeMap<SecretName, CachedDates>>);

/// A digest of a Secret, which uses less memory than a copy, and the dates of its certificates.
type CachedDates = (u64, Option<Dates>);

/// The earliest dates among several certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dates {
    renewal: Timestamp,
    end: Timestamp,
}

impl Dates {
    fn of(validity: Validity) -> Self {
        Self { renewal: validity.renew_at(), end: validity.not_after() }
    }

    fn first(self, other: Self) -> Self {
        Self { renewal: self.renewal.min(other.renewal), end: self.end.min(other.end) }
    }
}

/// Whether a certificate of a cluster that sleeps is renewed. All others are renewed when it wakes up.
fn is_renewed_in_sleep(secret: &SecretName) -> bool {
    holder(&secret.name) == Role::Ingress.row().name || holds(&secret.name) == SecretContents::Authority
}

impl CertificateCache {
    pub(super) fn families(&self, documents: &Documents) -> [MetricFamily; 3] {
        let [ends, renewals] = self.of_clusters(documents);
        [ends, renewals, of_agents(documents)]
    }

    /// Combines all components of a role, so that each cluster has one value for each role.
    fn of_clusters(&self, documents: &Documents) -> [MetricFamily; 2] {
        let ids = documents.clusters.iter().filter_map(|(name, cluster)| Some((cluster.id()?, name)));
        let clusters: BTreeMap<String, &ClusterRef> = ids.map(|(id, name)| (ClusterId::namespace(id), name)).collect();
        let mut first: BTreeMap<(Option<&ClusterRef>, &str), Dates> = BTreeMap::new();
        let asleep = documents.clusters.values().filter(|cluster| cluster.spec.asleep && cluster.is_sleeping());
        let asleep: BTreeSet<String> = asleep.filter_map(|cluster| Some(cluster.id()?.namespace())).collect();
        for (secret, dates) in self.read(documents) {
            if asleep.contains(&secret.namespace) && !is_renewed_in_sleep(secret) {
                continue;
            }
            let known = first.entry((clusters.get(&secret.namespace).copied(), holder(&secret.name))).or_insert(dates);
            *known = known.first(dates);
        }
        let mut ends = MetricFamily::new(
            "certificate_expiration_timestamp_seconds",
            "Time at which the first certificate of an authority, a role or the manager expires, in seconds since the epoch; without a \
             cluster: of certificates between the manager and agents",
        );
        let mut renewals = MetricFamily::new(
            "certificate_renewal_timestamp_seconds",
            "Time at which the first of these certificates is due for renewal, in seconds since the epoch",
        );
        for ((cluster, holder), dates) in first {
            let of = cluster.map(clusters::of).into_iter().flatten();
            let labels: Vec<MetricLabel> = of.chain([("holder", holder.to_owned())]).collect();
            ends.add(labels.clone(), seconds(dates.end));
            renewals.add(labels, seconds(dates.renewal));
        }
        [ends, renewals]
    }

    /// Returns the earliest dates of the certificates in each Secret.
    fn read<'a>(&self, documents: &'a Documents) -> Vec<(&'a SecretName, Dates)> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|name, (read, _)| documents.secrets.get(name).is_some_and(|secret| digest(secret) == *read));
        let mut dates = |name: &SecretName, secret: &Secret| {
            known.entry(name.clone()).or_insert_with(|| (digest(secret), dates_in(&name.name, secret))).1
        };
        documents.secrets.iter().filter_map(|(name, secret)| Some((name, dates(name, secret)?))).collect()
    }
}

fn digest(secret: &Secret) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (entry, value) in secret.data.iter().flatten() {
        entry.hash(&mut hasher);
        value.0.hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the earliest dates of the certificates in a Secret. The next and previous generations of an authority sign nothing and are ignored.
fn dates_in(name: &str, secret: &Secret) -> Option<Dates> {
    let counts = |entry: &str| match holds(name) {
        SecretContents::Authority => entry == "active.crt",
        SecretContents::Certificates => entry.strip_suffix(".crt").is_some(),
        SecretContents::ServiceAccountKey | SecretContents::EncryptionKey => false,
    };
    let entries = secret.data.iter().flatten().filter(|(entry, _)| counts(entry));
    let facts = entries.filter_map(|(_, value)| CertificateFacts::from_pem(str::from_utf8(&value.0).ok()?).ok());
    facts.map(|facts| Dates::of(facts.validity)).reduce(Dates::first)
}

/// Returns the label for a Secret's holder: the role of a component, `agent`, or else the name of the Secret.
fn holder(secret: &str) -> &str {
    let (before, index) = secret.rsplit_once('-').unwrap_or((secret, ""));
    let is_role = Role::ALL.iter().any(|role| role.row().name == before);
    if is_role && index.bytes().all(|byte| byte.is_ascii_digit()) {
        before
    } else if secret.starts_with("agent-") {
        "agent"
    } else {
        secret
    }
}

fn of_agents(documents: &Documents) -> MetricFamily {
    let name = "hypervisor_certificate_expiration_timestamp_seconds";
    let mut family = MetricFamily::new(
        name,
        "Time at which the certificate of a machine's agent expires, in seconds since the epoch",
    );
    for (name, machine) in &documents.hypervisors {
        let agent = machine.status.as_ref().and_then(|status| status.agent.as_ref());
        let end = agent.filter(|agent| !agent.revoked).and_then(|agent| agent.not_after.as_ref());
        family.add_known(hypervisors::of(name), end.map(|end| seconds(end.0)));
    }
    family
}

#[cfg(test)]
mod tests {
    use keelway_api::{ByteString, cluster::ClusterStatus, jiff::SignedDuration, secret::Metadata};
    use keelway_pki::{Authority, SecretData};
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::metrics::clusters::tests::{cluster, documents};

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn certificate(hours: i64) -> ByteString {
        let validity = Validity::new(now(), now() + SignedDuration::from_hours(hours)).unwrap();
        let authority = Authority::mint("test", validity, &mut StdRng::seed_from_u64(1)).unwrap();
        ByteString(authority.certificate().pem().as_bytes().to_vec())
    }

    fn secret(documents: &mut Documents, namespace: &str, name: &str, entries: &[(&str, i64)]) {
        let data: SecretData = entries.iter().map(|(key, hours)| ((*key).to_owned(), certificate(*hours).0)).collect();
        let secret = Secret {
            metadata: Metadata { name: Some(name.to_owned()), ..Metadata::default() },
            data: Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect()),
            ..Secret::default()
        };
        let name = SecretName { namespace: namespace.to_owned(), name: name.to_owned() };
        documents.secrets.insert(name, secret);
    }

    fn at(hours: i64) -> f64 {
        seconds(now() + SignedDuration::from_hours(hours))
    }

    #[test]
    fn each_role_has_one_value_its_first_expiry() {
        let id: ClusterId = "0123456789abcdef".parse().unwrap();
        let mut c1 = cluster("c1", &[], true);
        c1.status = Some(ClusterStatus { id: Some(id.clone()), ..c1.status.unwrap_or_default() });
        let mut documents = documents([c1]);
        let namespace = id.namespace();
        secret(&mut documents, &namespace, "etcd-0", &[("server.crt", 48), ("peer.crt", 24)]);
        secret(&mut documents, &namespace, "etcd-1", &[("server.crt", 72)]);
        secret(&mut documents, &namespace, "etcd-ca", &[("active.crt", 96), ("previous.crt", 1)]);
        secret(&mut documents, &namespace, "encryption", &[("active.crt", 1)]);
        secret(&mut documents, "keelway-installation-x", "infrastructure-ca", &[("active.crt", 9)]);
        let certificates = CertificateCache::default();
        let [family, ..] = certificates.families(&documents);
        assert_eq!(
            family.lines(),
            [
                format!("holder=infrastructure-ca {}", at(9)),
                format!("namespace=default cluster=c1 holder=etcd {}", at(24)),
                format!("namespace=default cluster=c1 holder=etcd-ca {}", at(96)),
            ]
        );

        let renewals = certificates.families(&documents)[1].lines();
        assert_eq!(renewals[1], format!("namespace=default cluster=c1 holder=etcd {}", at(16)));

        secret(&mut documents, &namespace, "etcd-0", &[("server.crt", 240)]);
        let [family, ..] = certificates.families(&documents);
        assert_eq!(
            family.lines()[1],
            format!("namespace=default cluster=c1 holder=etcd {}", at(72)),
            "it is read anew"
        );
        documents.secrets.clear();
        assert_eq!(certificates.families(&documents)[0].samples, []);
        assert!(certificates.0.lock().unwrap().is_empty());
    }

    #[test]
    fn holders_are_few() {
        for (secret, whose) in [
            ("etcd-12", "etcd"),
            ("kube-apiserver-0", "kube-apiserver"),
            ("etcd-ca", "etcd-ca"),
            ("driver", "driver"),
            ("agent-hv-1", "agent"),
        ] {
            assert_eq!(holder(secret), whose);
        }
    }
}
