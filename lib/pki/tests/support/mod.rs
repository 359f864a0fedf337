//! Helpers for the integration tests.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, IssuedCertificate, LeafRequest, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};

pub(crate) fn seeded(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub(crate) fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

pub(crate) fn hours(hours: i64) -> Validity {
    Validity::starting(now(), SignedDuration::from_hours(hours)).unwrap()
}

/// Creates an authority that is valid for ten years. All have the same name, like the generations of one authority.
pub(crate) fn authority(seed: u64) -> Authority {
    Authority::mint("kubernetes", hours(87600), &mut seeded(seed)).unwrap()
}

pub(crate) fn server() -> LeafRequest {
    LeafRequest {
        common_name: "kube-apiserver".to_owned(),
        organizations: Vec::new(),
        dns_names: vec!["kubernetes.default.svc".to_owned(), "*.c1.example.org".to_owned()],
        ip_addresses: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        usages: vec![CertificateUsage::ServerAuth],
        validity: hours(8760),
    }
}

pub(crate) fn client() -> LeafRequest {
    LeafRequest {
        common_name: "kubernetes-admin".to_owned(),
        organizations: vec!["keelway:admins, with a comma".to_owned()],
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
        usages: vec![CertificateUsage::ClientAuth],
        validity: hours(24),
    }
}

pub(crate) fn issue(authority: &Authority, request: &LeafRequest) -> IssuedCertificate {
    authority.issue(request, &mut seeded(99)).unwrap()
}
