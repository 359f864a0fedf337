//! The keys and certificates that an installation needs for connections between its driver and networked agents. An installation without
//! networked agents needs none.

use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use keelway_api::{
    Documents,
    cluster::CertificatesSpec,
    documents::SecretName,
    duration::Span,
    fault::{Fault, Faults},
    hypervisor::{ANY_AGENT, agent_name},
    jiff::Timestamp,
    name::{HypervisorName, InstallationId},
    validated::ValidatedHypervisor,
};

use crate::{
    AuthorityGeneration, CertificateReference, CertificateSeen, CertificateSubject, MintRequest, ObservedCertificates,
    PassObservation, WaitBlocker, WaitSubject,
    certificate_subject::{client, holds_at, matches_subject},
    plan::Plan,
    secret_names::{AUTHORITY, DRIVER, DRIVER_SECRET, INFRASTRUCTURE},
    world::ValidatedDocuments,
};

/// The common name of every agent. Its DNS name identifies the machine.
const AGENT: &str = "keelway:agent";
/// The name of the driver's certificate in its Secret.
const CLIENT: &str = "client";
/// The prefix of the names of Secrets that hold agents' certificates.
pub(crate) const AGENT_PREFIX: &str = "agent";
/// The name of an agent's certificate in its Secret.
const SERVER: &str = "server";
/// The name of the Secret that holds the revocations of the installation's authority.
pub const REVOKED: &str = "revoked";
/// The key of the revoked serial numbers in that Secret, one on each line. If the key is missing, no certificate is revoked.
pub const REVOKED_SERIALS: &str = "serials";
/// The key of the signed revocation list in that Secret.
pub const REVOCATION_LIST: &str = "revoked.crl";

/// Returns the Secret of the authority by which the driver and the agents of an installation verify each other. Its bundle is `bundle.crt`.
#[must_use]
pub fn installation_authority(id: &InstallationId) -> SecretName {
    SecretName::of_installation(id, INFRASTRUCTURE)
}

/// Returns the Secret of the authority's revocations. The list is `revoked.crl`.
#[must_use]
pub fn installation_revoked(id: &InstallationId) -> SecretName {
    SecretName::of_installation(id, REVOKED)
}

/// Returns the identity by which networked agents recognize the driver of their installation.
#[must_use]
pub fn installation_driver(id: &InstallationId) -> CertificateReference {
    CertificateReference { secret: SecretName::of_installation(id, DRIVER_SECRET), name: CLIENT }
}

/// Returns the identity of a machine's agent on the network.
#[must_use]
pub fn agent_identity(id: &InstallationId, machine: &HypervisorName) -> CertificateReference {
    CertificateReference { secret: SecretName::of_installation(id, &format!("{AGENT_PREFIX}-{machine}")), name: SERVER }
}

pub(crate) fn plan_certificates(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation, now: Timestamp) {
    let wanted = certificates(&plan.documents, world, &seen.certificates, now);
    plan.mint.extend(wanted);
    let lost: Vec<SecretName> = lost(&plan.documents).collect();
    for secret in lost {
        plan.wait(WaitSubject::Secret(secret), WaitBlocker::MissingSecret);
    }
}

/// Returns what the installation needs minted. It uses the documents alone, because no networked agent can be reached before that.
///
/// # Errors
/// A document is invalid, or a Secret that is minted once is missing.
pub fn installation_certificates(
    documents: &Documents,
    seen: &ObservedCertificates,
    now: Timestamp,
) -> Result<Vec<MintRequest>, Faults> {
    let world = ValidatedDocuments::of(documents)?;
    let fault = |secret: SecretName| {
        let title = format!("Secret {}/{}", secret.namespace, secret.name);
        Fault { document: title, ..Fault::of("", "is missing, and agents depend on it", RESTORE) }
    };
    let lost: Vec<Fault> = lost(documents).map(fault).collect();
    if lost.is_empty() { Ok(certificates(documents, &world, seen, now)) } else { Err(Faults(lost)) }
}

/// The remedy for a missing Secret that is minted once.
pub(crate) const RESTORE: &str = "restore it from a backup, or use the documents that the last pass wrote";

/// The Secrets that are minted once in the life of an installation and are missing: its authority, which every agent trusts, and the list of
/// that authority's revocations. Agents would not trust a second authority. A second list would make revoked certificates valid again.
fn lost(documents: &Documents) -> impl Iterator<Item = SecretName> {
    let id = documents.installation();
    let has = |secret: &SecretName| documents.secrets.contains_key(secret);
    let was_seen = documents.hypervisors.values().any(|machine| {
        let agent = machine.status.as_ref().and_then(|status| status.agent.as_ref());
        agent.is_some_and(|agent| agent.not_after.is_some())
    });
    let had_authority = |id| was_seen || has(&installation_driver(id).secret) || has(&installation_revoked(id));
    let authority = id.filter(|id| had_authority(id)).map(installation_authority);
    let list = id.filter(|_| was_seen).map(installation_revoked);
    authority.into_iter().chain(list).filter(move |secret| !has(secret))
}

/// The first authority, if there never was one, and each certificate that is missing, has other contents than it should, or has reached two
/// thirds of its lifetime.
fn certificates(
    documents: &Documents,
    world: &ValidatedDocuments,
    seen: &ObservedCertificates,
    now: Timestamp,
) -> Vec<MintRequest> {
    let Some(id) = documents.installation() else { return Vec::new() };
    let is_there = |machine: &&ValidatedHypervisor| documents.hypervisors.contains_key(&machine.name);
    let on_network = world.machines.values().filter(is_there).filter(|machine| machine.endpoint.is_on_network());
    let (enrolled, by_hand): (Vec<_>, Vec<_>) =
        on_network.map(|machine| &machine.name).partition(|name| is_enrolled(documents, name));
    if enrolled.is_empty() && by_hand.is_empty() {
        return Vec::new();
    }
    let ttl = CertificatesSpec::default();
    let authority = installation_authority(id);
    let missing: Vec<SecretName> = lost(documents).collect();
    if missing.contains(&authority) {
        return Vec::new();
    }
    let first = (!documents.secrets.contains_key(&authority)).then(|| MintRequest::Authority {
        secret: authority.clone(),
        common_name: "infrastructure".to_string(),
        revokes: true,
        ttl: ttl.authority_ttl,
    });
    let signer = seen.get(&(authority.clone(), AUTHORITY.to_string()));
    let is_due = |want: &InstallationCertificate| first.is_some() || want.is_due(documents, (seen, signer), now);
    let due: Vec<InstallationCertificate> =
        [driver(id)].into_iter().chain(by_hand.into_iter().map(|name| agent(id, name))).filter(is_due).collect();
    let certificate = |InstallationCertificate { identity, subject }| MintRequest::Certificate {
        secret: identity.secret,
        name: identity.name.to_string(),
        authority: authority.clone(),
        generation: AuthorityGeneration::Active,
        subject,
        ttl: ttl.component_ttl,
    };
    let certificates: Vec<MintRequest> = due.into_iter().map(certificate).collect();
    let is_listed = documents
        .secrets
        .get(&installation_revoked(id))
        .is_some_and(|secret| secret.data.as_ref().is_some_and(|data| data.contains_key(REVOCATION_LIST)));
    let wants_list = !enrolled.is_empty() && !missing.contains(&installation_revoked(id));
    let list = (wants_list && (first.is_some() || !is_listed)).then(|| MintRequest::RevocationList {
        secret: installation_revoked(id),
        name: REVOCATION_LIST.to_string(),
        authority: authority.clone(),
        serials: revoked_serials(documents, id),
        ttl: ttl.authority_ttl,
    });
    first.into_iter().chain(certificates).chain(list).collect()
}

/// Whether the key of a machine's agent is on that machine alone.
fn is_enrolled(documents: &Documents, machine: &HypervisorName) -> bool {
    let Some(document) = documents.hypervisors.get(machine) else { return false };
    document.spec.endpoint.cri().is_some() || document.status.as_ref().is_some_and(|status| status.agent.is_some())
}

/// The revoked serial numbers.
fn revoked_serials(documents: &Documents, id: &InstallationId) -> Vec<String> {
    let data = documents.secrets.get(&installation_revoked(id)).and_then(|secret| secret.data.as_ref());
    let text = data.and_then(|data| core::str::from_utf8(&data.get(REVOKED_SERIALS)?.0).ok());
    text.unwrap_or_default().lines().map(ToString::to_string).collect()
}

/// Returns what an agent is granted at its enrollment: the subject of its certificate, the authority that signs it, and its lifetime.
#[must_use]
pub fn agent_grant(id: &InstallationId, machine: &HypervisorName) -> (CertificateSubject, SecretName, Span) {
    (agent(id, machine).subject, installation_authority(id), CertificatesSpec::default().component_ttl)
}

struct InstallationCertificate {
    identity: CertificateReference,
    subject: CertificateSubject,
}

fn driver(id: &InstallationId) -> InstallationCertificate {
    InstallationCertificate { identity: installation_driver(id), subject: client(DRIVER, &[id.as_str()]) }
}

fn agent(id: &InstallationId, machine: &HypervisorName) -> InstallationCertificate {
    let subject = CertificateSubject {
        common_name: AGENT.to_string(),
        organizations: vec![id.to_string()],
        dns_names: vec![agent_name(machine), ANY_AGENT.to_string()],
        addresses: Vec::new(),
        server: true,
        // An agent that dials out shows it at the port of its peer.
        client: true,
    };
    InstallationCertificate { identity: agent_identity(id, machine), subject }
}

impl InstallationCertificate {
    fn is_due(
        &self,
        documents: &Documents,
        (seen, authority): (&ObservedCertificates, Option<&CertificateSeen>),
        now: Timestamp,
    ) -> bool {
        let CertificateReference { secret, name } = &self.identity;
        let data = documents.secrets.get(secret).and_then(|secret| secret.data.as_ref());
        let has_key = data.is_some_and(|data| data.contains_key(&format!("{name}.key")));
        let found = seen.get(&(secret.clone(), String::from(*name)));
        !has_key || found.is_none_or(|found| !holds_at(found, authority, now) || !matches_subject(found, &self.subject))
    }
}
