//! Helpers that the unit tests of this crate share.

use jiff::{SignedDuration, Timestamp};
use rand::{SeedableRng, rngs::ChaCha8Rng};

use crate::{Authority, CertificateUsage, LeafRequest, Validity};

pub(crate) fn seeded(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub(crate) fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

pub(crate) fn hours(hours: i64) -> Validity {
    Validity::starting(now(), SignedDuration::from_hours(hours)).unwrap()
}

pub(crate) fn authority(seed: u64) -> Authority {
    Authority::mint("kubernetes", hours(87600), &mut seeded(seed)).unwrap()
}

pub(crate) fn server(validity: Validity) -> LeafRequest {
    LeafRequest {
        common_name: "kube-apiserver".to_owned(),
        organizations: Vec::new(),
        dns_names: vec!["kubernetes.default.svc".to_owned()],
        ip_addresses: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        usages: vec![CertificateUsage::ServerAuth],
        validity,
    }
}
