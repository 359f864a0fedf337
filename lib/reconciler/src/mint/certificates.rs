//! Mints certificates on all processors: generating their keys takes most of the time of a pass that creates clusters.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZero,
    panic::resume_unwind,
    thread,
};

use keelway_api::{Documents, documents::SecretName, duration::Span, jiff::Timestamp};
use keelway_pki::{AuthorityKeyring, IssuedCertificate, RetiredAuthority};
use keelway_planner::{AuthorityGeneration, CertificateSubject, MintRequest};
use rand::{CryptoRng, SeedableRng, rngs::StdRng};

use super::{MintError, MintedValues, authority_of, request, validity};

/// A certificate to mint, with its own source of randomness.
struct CertificateMintRequest<'a> {
    name: &'a str,
    authority: &'a SecretName,
    generation: AuthorityGeneration,
    subject: &'a CertificateSubject,
    ttl: Span,
    rng: StdRng,
}

/// Returns the values for the Secrets, in the order of the requests. Each certificate has its own source of randomness, so the result does not
/// depend on the number of processors.
pub(super) fn mint<R: CryptoRng>(
    rng: &mut R,
    documents: &Documents,
    requests: &[MintRequest],
    now: Timestamp,
) -> Result<Vec<MintedValues>, MintError> {
    let mut wanted: Vec<CertificateMintRequest<'_>> =
        requests.iter().filter_map(|request| wanted(request, rng)).collect();
    let share = wanted.len().div_ceil(thread::available_parallelism().map_or(1, NonZero::get)).max(1);
    thread::scope(|scope| {
        let mut shares = wanted.chunks_mut(share);
        let own = shares.next().unwrap_or_default();
        let others: Vec<_> = shares.map(|share| scope.spawn(move || issue_all(documents, share, now))).collect();
        let mut minted = issue_all(documents, own, now)?;
        for thread in others {
            minted.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(minted)
    })
}

fn wanted<'a, R: CryptoRng>(request: &'a MintRequest, rng: &mut R) -> Option<CertificateMintRequest<'a>> {
    let MintRequest::Certificate { name, authority, generation, subject, ttl, .. } = request else { return None };
    let rng = StdRng::from_rng(rng);
    Some(CertificateMintRequest { name, authority, generation: *generation, subject, ttl: *ttl, rng })
}

/// Issues certificates. It reads each authority once.
fn issue_all(
    documents: &Documents,
    wanted: &mut [CertificateMintRequest<'_>],
    now: Timestamp,
) -> Result<Vec<MintedValues>, MintError> {
    let mut authorities = BTreeMap::new();
    let mut minted = Vec::with_capacity(wanted.len());
    for certificate in wanted {
        let signer = match authorities.entry(certificate.authority) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(authority_of(documents, certificate.authority)?),
        };
        let mut data = MintedValues::new();
        issue(signer, certificate, now)?.write_to(&mut data, certificate.name);
        minted.push(data);
    }
    Ok(minted)
}

fn issue(
    signer: &AuthorityKeyring,
    wanted: &mut CertificateMintRequest<'_>,
    now: Timestamp,
) -> Result<IssuedCertificate, MintError> {
    let asked = request(wanted.subject, validity(now, wanted.ttl)?);
    let authority = match (wanted.generation, &signer.previous) {
        (AuthorityGeneration::Active, _) => &signer.active,
        (AuthorityGeneration::Previous, Some(RetiredAuthority::Signing(previous))) => previous,
        (AuthorityGeneration::Previous, _) => return Err(MintError::NoPrevious(wanted.authority.name.clone())),
    };
    authority.issue(&asked, &mut wanted.rng).map_err(MintError::Leaf)
}

#[cfg(test)]
mod tests {
    use keelway_api::name::ID_DIGITS;

    use super::*;
    use crate::{Minter, PkiMinter};

    const CERTIFICATES: usize = 7;

    fn secret(name: &str) -> SecretName {
        SecretName { namespace: format!("keelway-{}", "0".repeat(ID_DIGITS)), name: name.to_owned() }
    }

    fn authority(name: &str) -> MintRequest {
        let ttl = "87600h".parse().unwrap();
        MintRequest::Authority { secret: secret(name), common_name: name.to_owned(), revokes: false, ttl }
    }

    fn certificate(number: usize) -> MintRequest {
        MintRequest::Certificate {
            secret: secret(&format!("component-{number}")),
            name: "server".to_owned(),
            authority: secret(["etcd", "kubernetes"][number % 2]),
            generation: AuthorityGeneration::Active,
            subject: CertificateSubject {
                common_name: number.to_string(),
                organizations: Vec::new(),
                dns_names: Vec::new(),
                addresses: Vec::new(),
                server: false,
                client: true,
            },
            ttl: "24h".parse().unwrap(),
        }
    }

    #[test]
    fn certificates_are_the_same_on_any_number_of_processors_and_each_its_own() {
        let mut documents = Documents::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let authorities = ["etcd", "kubernetes"].map(authority);
        PkiMinter::new(StdRng::seed_from_u64(1)).mint(&mut documents, &authorities, now).unwrap();
        let requests: Vec<MintRequest> = (0..CERTIFICATES).map(certificate).collect();
        let minted = mint(&mut StdRng::seed_from_u64(2), &documents, &requests, now).unwrap();

        let mut rng = StdRng::seed_from_u64(2);
        let mut one_after_the_other = Vec::new();
        for request in &requests {
            one_after_the_other.extend(mint(&mut rng, &documents, std::slice::from_ref(request), now).unwrap());
        }
        assert_eq!(minted, one_after_the_other);
        let keys: std::collections::BTreeSet<_> = minted.iter().map(|data| &data["server.key"]).collect();
        assert_eq!(keys.len(), CERTIFICATES);
    }
}
