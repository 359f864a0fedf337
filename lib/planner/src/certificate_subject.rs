//! The subjects of certificates, and whether a certificate that was found is the one that is wanted.

use alloc::{
    collections::BTreeSet,
    string::{String, ToString},
    vec::Vec,
};
use core::net::IpAddr;

use keelway_api::jiff::{SignedDuration, Timestamp};

use crate::{CertificateSeen, CertificateSubject};

/// How far ahead the minting clock may have been. A certificate is valid from five minutes before the time at which it is minted, and the
/// clocks of machines may be behind by as much.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Whether a certificate is valid and has not reached two thirds of its lifetime. If it becomes valid only later, the clock that minted it was
/// ahead, and it is not accepted. A new certificate is valid no earlier than its authority, so that start is accepted.
pub(crate) fn holds_at(found: &CertificateSeen, authority: Option<&CertificateSeen>, now: Timestamp) -> bool {
    let begins = authority.map_or(Timestamp::MIN, |authority| authority.not_before);
    let is_early = now.duration_until(found.not_before) > CLOCK_SKEW && found.not_before > begins;
    found.renew_at > now && !is_early
}

pub(crate) fn matches_subject(found: &CertificateSeen, wanted: &CertificateSubject) -> bool {
    found.common_name == wanted.common_name
        && same(&found.organizations, &wanted.organizations)
        && same(&found.dns_names, &wanted.dns_names)
        && same(&found.addresses, &wanted.addresses)
}

/// Whether two lists have the same elements in any order. The fast path is the same order.
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

pub(crate) fn server(common_name: &str, dns_names: Vec<String>, addresses: Vec<IpAddr>) -> CertificateSubject {
    CertificateSubject {
        common_name: common_name.to_string(),
        organizations: Vec::new(),
        dns_names,
        addresses,
        server: true,
        client: false,
    }
}
