//! Which keys and certificates an installation wants for what goes over a network between its driver and its agents. Where no
//! agent listens on a network it wants none.

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
    CertificateReference, CertificateSeen, CertificateSubject, MintRequest, ObservedCertificates, PassObservation,
    access::DRIVER,
    certificates::{AUTHORITY, DRIVER_SECRET, INFRASTRUCTURE, client, holds_at, matches_subject},
    plan::Plan,
    world::ValidatedDocuments,
};

/// The common name of every agent: which machine it is of is its DNS name.
const AGENT: &str = "keelway:agent";
/// The driver's certificate within its Secret.
const CLIENT: &str = "client";
/// What the names of Secrets with agents' certificates begin with.
pub(crate) const AGENT_PREFIX: &str = "agent";
/// An agent's certificate within its Secret.
const SERVER: &str = "server";
/// The Secret of what the authority beside it revoked.
pub const REVOKED: &str = "revoked";
/// The serial numbers of the certificates that are revoked, a line each, within the same Secret. None: there are none.
pub const REVOKED_SERIALS: &str = "serials";
/// The list that says so, signed.
pub const REVOCATION_LIST: &str = "revoked.crl";

/// The Secret of the authority that the driver and the agents of an installation know each other by: `bundle.crt`.
#[must_use]
pub fn installation_authority(id: &InstallationId) -> SecretName {
    SecretName::of_installation(id, INFRASTRUCTURE)
}

/// The Secret of what that authority revoked: `revoked.crl`.
#[must_use]
pub fn installation_revoked(id: &InstallationId) -> SecretName {
    SecretName::of_installation(id, REVOKED)
}

/// Whom agents on a network take for the driver of their installation.
#[must_use]
pub fn installation_driver(id: &InstallationId) -> CertificateReference {
    CertificateReference { secret: SecretName::of_installation(id, DRIVER_SECRET), name: CLIENT }
}

/// Who the agent of a machine is on the network.
#[must_use]
pub fn agent_identity(id: &InstallationId, machine: &HypervisorName) -> CertificateReference {
    CertificateReference { secret: SecretName::of_installation(id, &format!("{AGENT_PREFIX}-{machine}")), name: SERVER }
}

pub(crate) fn plan_certificates(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation, now: Timestamp) {
    let wanted = certificates(&plan.documents, world, &seen.certificates, now);
    plan.mint.extend(wanted);
    let lost: Vec<SecretName> = lost(&plan.documents).collect();
    for secret in lost {
        let title = format!("{}/{}", secret.namespace, secret.name);
        plan.wait(&title, format!("this Secret: {RESTORE}; no agent is granted a certificate until then"));
    }
}

/// What an installation wants minted, with nothing but its documents at hand: no agent on a network can be reached before that.
///
/// # Errors
/// A document does not mean anything, or a Secret that is minted once is missing.
pub fn installation_certificates(
    documents: &Documents,
    seen: &ObservedCertificates,
    now: Timestamp,
) -> Result<Vec<MintRequest>, Faults> {
    let world = ValidatedDocuments::of(documents)?;
    let fault = |secret: SecretName| {
        let title = format!("Secret {}/{}", secret.namespace, secret.name);
        Fault { document: title, ..Fault::of("", "it is missing, and agents rely on what it held", RESTORE) }
    };
    let lost: Vec<Fault> = lost(documents).map(fault).collect();
    if lost.is_empty() { Ok(certificates(documents, &world, seen, now)) } else { Err(Faults(lost)) }
}

/// The way back to a Secret that is minted once.
const RESTORE: &str = "restore it from a backup, or go back to the last documents";

/// The Secrets that are minted once in the life of an installation, and are missing: its authority, which every agent trusts, and the list
/// of what that authority revoked. Agents would trust no second authority, and take back who is on no second list.
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

/// The authority where there never was one, and each certificate that is not there, says something else than it should, or has
/// lived two thirds of its life.
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
    let document = documents.hypervisors.get(machine);
    document.and_then(|document| document.status.as_ref()?.agent.as_ref()).is_some()
}

/// The serial numbers of what is revoked.
fn revoked_serials(documents: &Documents, id: &InstallationId) -> Vec<String> {
    let data = documents.secrets.get(&installation_revoked(id)).and_then(|secret| secret.data.as_ref());
    let text = data.and_then(|data| core::str::from_utf8(&data.get(REVOKED_SERIALS)?.0).ok());
    text.unwrap_or_default().lines().map(ToString::to_string).collect()
}

/// What the agent of a machine is granted when it is enrolled: whom it stands for, of which authority, and for how long.
#[must_use]
pub fn agent_grant(id: &InstallationId, machine: &HypervisorName) -> (CertificateSubject, SecretName, Span) {
    (agent(id, machine).subject, installation_authority(id), CertificatesSpec::default().component_ttl)
}

/// One certificate that is wanted.
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
        // One that dials out shows it at another's port.
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
