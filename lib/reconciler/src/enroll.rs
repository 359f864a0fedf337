//! Enrollment tokens and revocation: changes of the documents that need no connection to an agent.

use std::collections::BTreeSet;

use keelway_api::{
    ByteString, Documents, condition,
    hypervisor::AgentStatus,
    jiff::{SignedDuration, Timestamp},
    name::HypervisorName,
};
use keelway_pki::{AuthorityHash, CertificateError, EnrollmentToken};
use keelway_planner::{
    ENROLLMENT_EXPIRES, ENROLLMENT_TOKEN, REVOCATION_LIST, REVOKED_SERIALS, agent_identity, enrollment_secret,
    installation_authority, installation_certificates, installation_revoked,
};

use crate::{Minter, PassError, certificates, pass::identified, tls};

/// The credentials of an agent on a network, in PEM.
pub struct AgentCredentials {
    /// The certificate of the agent.
    pub certificate: Vec<u8>,
    /// The private key of the agent.
    pub key: Vec<u8>,
    /// The authorities that issue the certificate of its driver.
    pub authorities: Vec<u8>,
}

/// Returns the documents with all certificates that the installation needs for its agents on networks and for its driver.
pub fn enroll(documents: &Documents, minter: &mut dyn Minter, now: Timestamp) -> Result<Documents, PassError> {
    let mut documents = identified(documents, minter)?;
    let wanted = installation_certificates(&documents, &certificates::read(&documents), now);
    minter.mint(&mut documents, &wanted.map_err(PassError::Faults)?, now).map_err(PassError::Mint)?;
    Ok(documents)
}

/// Why no token was issued, or no agent revoked.
#[derive(Debug, thiserror::Error)]
pub enum EnrollFault {
    /// The documents contain no Hypervisor of this name.
    #[error("there is no Hypervisor {0} in the documents")]
    Missing(HypervisorName),
    /// The agent has a certificate that is neither expired nor revoked.
    #[error("the agent of {0} is enrolled already")]
    Enrolled(HypervisorName),
    /// The agent was never enrolled, so there is nothing to revoke.
    #[error("the agent of {0} was never enrolled: there is no certificate to revoke")]
    Never(HypervisorName),
    /// The expiry of the token is out of range.
    #[error("the lifetime of the token is out of range")]
    Ttl,
    /// The certificate of the installation's authority cannot be read.
    #[error("cannot read the authority of the installation")]
    Authority(#[source] CertificateError),
    /// The documents cannot be identified or completed.
    #[error(transparent)]
    Pass(#[from] PassError),
}

/// Issues a token with which a machine enrolls. Returns the documents and the token. An earlier token of the machine, and certificates that were
/// issued with it, are not valid any more.
pub fn issue_token(
    documents: &Documents,
    machine: &HypervisorName,
    ttl: SignedDuration,
    minter: &mut dyn Minter,
    now: Timestamp,
) -> Result<(Documents, EnrollmentToken), EnrollFault> {
    let mut documents = documents.clone();
    let document = documents.hypervisors.get_mut(machine).ok_or_else(|| EnrollFault::Missing(machine.clone()))?;
    let status = document.status.get_or_insert_default();
    let holds = |agent: &AgentStatus| !agent.revoked && agent.not_after.as_ref().is_none_or(|end| end.0 > now);
    if condition::is_true(&status.conditions, "Enrolled") && status.agent.as_ref().is_some_and(holds) {
        return Err(EnrollFault::Enrolled(machine.clone()));
    }
    status.conditions.retain(|condition| condition.type_ != "Enrolled");
    // The id of the new token follows below. Certificates that were issued with the token before are revoked, even those that were never reported.
    let before = status.agent.replace(AgentStatus::new(String::new()));
    let documents = identified(&documents, minter)?;
    let mut documents = match before.filter(|agent| !agent.revoked) {
        Some(before) => revoked(documents, &before.serials(), minter, now)?,
        None => enroll(&documents, minter, now)?,
    };
    let id = documents.installation().cloned().ok_or_else(|| EnrollFault::Missing(machine.clone()))?;
    let bundle = tls::value(&documents, &installation_authority(&id), "bundle.crt").unwrap_or_default();
    let authorities = AuthorityHash::of_bundle(&String::from_utf8_lossy(bundle)).map_err(EnrollFault::Authority)?;
    let end = now.checked_add(ttl).and_then(|end| Timestamp::from_second(end.as_second()));
    let expires = end.map_err(|_| EnrollFault::Ttl)?;
    let token = EnrollmentToken::mint(id.as_str(), machine.as_str(), authorities, expires, &mut rand::rng());
    if let Some(agent) = documents.hypervisors.get_mut(machine).and_then(|found| found.status.as_mut()?.agent.as_mut())
    {
        agent.token.clone_from(&token.id);
    }
    let values = [(ENROLLMENT_TOKEN, token.encode().to_string()), (ENROLLMENT_EXPIRES, expires.to_string())];
    let values = values.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    documents.put_secret_values(&enrollment_secret(&id, machine), values);
    Ok((documents, token))
}

/// Returns the documents after revoking all certificates of a machine's agent.
pub fn revoke_agent(
    documents: &Documents,
    machine: &HypervisorName,
    minter: &mut dyn Minter,
    now: Timestamp,
) -> Result<Documents, EnrollFault> {
    let mut documents = identified(documents, minter)?;
    let id = documents.installation().cloned().ok_or_else(|| EnrollFault::Missing(machine.clone()))?;
    let document = documents.hypervisors.get_mut(machine).ok_or_else(|| EnrollFault::Missing(machine.clone()))?;
    let status = document.status.get_or_insert_default();
    let agent = status.agent.as_mut().ok_or_else(|| EnrollFault::Never(machine.clone()))?;
    let serials = agent.serials();
    agent.revoked = true;
    status.conditions.retain(|condition| condition.type_ != "Enrolled");
    documents.secrets.remove(&enrollment_secret(&id, machine));
    Ok(revoked(documents, &serials, minter, now)?)
}

/// Returns the documents after revoking the certificates with these serial numbers.
fn revoked(
    mut documents: Documents,
    serials: &[String],
    minter: &mut dyn Minter,
    now: Timestamp,
) -> Result<Documents, PassError> {
    let Some(list) = documents.installation().map(installation_revoked) else { return Ok(documents) };
    let before = tls::value(&documents, &list, REVOKED_SERIALS).unwrap_or_default();
    let mut all: BTreeSet<String> = String::from_utf8_lossy(before).lines().map(str::to_owned).collect();
    all.extend(serials.iter().cloned());
    let lines: String = all.into_iter().map(|serial| serial + "\n").collect();
    documents.put_secret_values(&list, [(REVOKED_SERIALS.to_owned(), ByteString(lines.into_bytes()))]);
    if let Some(data) = documents.secrets.get_mut(&list).and_then(|secret| secret.data.as_mut()) {
        data.remove(REVOCATION_LIST);
    }
    enroll(&documents, minter, now)
}

/// Returns the credentials of a machine's agent; none if the documents contain none.
#[must_use]
pub fn agent_credentials(documents: &Documents, machine: &HypervisorName) -> Option<AgentCredentials> {
    let id = documents.installation()?;
    let identity = agent_identity(id, machine);
    let value = |secret, key: &str| tls::value(documents, secret, key).ok().map(<[u8]>::to_vec);
    Some(AgentCredentials {
        certificate: value(&identity.secret, &format!("{}.crt", identity.name))?,
        key: value(&identity.secret, &format!("{}.key", identity.name))?,
        authorities: value(&installation_authority(id), "bundle.crt")?,
    })
}

#[cfg(test)]
mod tests {
    use keelway_api::{condition::ConditionStatus, condition::ConditionValue};
    use keelway_pki::{CertificateFacts, PrivateKeyPem, client_signing_request, verify_issued_by};
    use keelway_planner::{AgentOrder, REVOKED};
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{AgentCertification, PkiMinter};

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn minter() -> PkiMinter<StdRng> {
        PkiMinter::new(StdRng::seed_from_u64(1))
    }

    fn name() -> HypervisorName {
        "hv-1".parse().unwrap()
    }

    fn documents() -> Documents {
        let text = "apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: hv-1}\nspec:\n  role: Private\n  \
                    endpoint: {agent: {address: '10.0.0.5:7443'}}\n  addresses: {private: [10.0.0.5]}\n";
        Documents::read(text.as_bytes()).unwrap()
    }

    fn issued(documents: &Documents) -> (Documents, EnrollmentToken) {
        issue_token(documents, &name(), HOUR, &mut minter(), now()).unwrap()
    }

    fn agent(documents: &Documents) -> &AgentStatus {
        documents.hypervisors[&name()].status.as_ref().unwrap().agent.as_ref().unwrap()
    }

    /// Returns the revoked serial numbers, and the revocation list in PEM.
    fn listed(documents: &Documents) -> (Vec<String>, String) {
        let secret = documents.secrets.iter().find(|(secret, _)| secret.name == REVOKED).unwrap().1;
        let data = secret.data.as_ref().unwrap();
        let text =
            |key: &str| data.get(key).map(|value| String::from_utf8(value.0.clone()).unwrap()).unwrap_or_default();
        (text(REVOKED_SERIALS).lines().map(str::to_owned).collect(), text(REVOCATION_LIST))
    }

    #[test]
    fn a_token_names_its_machine_and_the_authority_and_its_secret_is_in_a_secret() {
        let (documents, token) = issued(&documents());
        let id = documents.installation().unwrap();
        assert_eq!((token.machine.as_str(), token.installation.as_str()), ("hv-1", id.as_str()));
        assert_eq!((token.expires, &agent(&documents).token), (now() + HOUR, &token.id));
        let (name, order) = (name(), AgentOrder::Enroll(agent(&documents).serial()));
        let certifying = AgentCertification::new(&documents, (&name, &order), now());
        assert_eq!(certifying.token().unwrap(), token);
        assert!(agent_credentials(&documents, &name).is_none(), "no key of it is here");
        let written = documents.write();
        assert!(Documents::read(written.as_bytes()).unwrap() == documents);
    }

    #[test]
    fn a_certificate_is_for_the_machine_whatever_was_requested() {
        let (documents, _) = issued(&documents());
        let serial = agent(&documents).serial();
        let (name, order) = (name(), AgentOrder::Enroll(serial.clone()));
        let certifying = AgentCertification::new(&documents, (&name, &order), now());
        let key = PrivateKeyPem::mint(&mut StdRng::seed_from_u64(2)).unwrap();
        let granted = certifying.grant(&client_signing_request(&key, "keelway:driver", "x").unwrap()).unwrap();
        verify_issued_by(&granted.certificate, &granted.trust.authorities, now()).unwrap();
        let facts = CertificateFacts::from_pem(&granted.certificate).unwrap();
        assert_eq!(facts.dns_names, ["hv-1.hypervisor.keelway", "hypervisor.keelway"]);
        assert_eq!(facts.serial, serial);
        assert_eq!(facts.organizations, [documents.installation().unwrap().to_string()]);
        assert!(certifying.grant("no request").is_err());
        let trust = AgentCertification::new(&documents, (&name, &AgentOrder::Trust), now());
        assert!(trust.grant(&client_signing_request(&key, "a", "b").unwrap()).is_err());
        assert_eq!(trust.trust().unwrap(), granted.trust);
    }

    #[test]
    fn a_new_token_replaces_the_first_and_revokes_its_certificates() {
        let (first, token) = issued(&documents());
        let serials = agent(&first).serials();
        assert_eq!(listed(&first).0, [""; 0]);
        let (second, other) = issued(&first);
        assert_ne!(token.id, other.id);
        assert_eq!(listed(&second).0, serials);
        assert_ne!(listed(&second).1, listed(&first).1);
        assert!(!serials.contains(&agent(&second).serial()));
    }

    #[test]
    fn an_enrolled_agent_is_revoked_before_it_is_enrolled_again() {
        let (mut documents, _) = issued(&documents());
        let status = documents.hypervisors.get_mut(&name()).unwrap().status.as_mut().unwrap();
        let says =
            ConditionValue { status: ConditionStatus::True, reason: "Certified".to_owned(), message: String::new() };
        condition::set(&mut status.conditions, "Enrolled", says, None, &keelway_api::Time(now()));
        status.agent.as_mut().unwrap().certificates = 2;
        let again = |documents: &Documents| issue_token(documents, &name(), HOUR, &mut minter(), now());
        assert!(matches!(again(&documents), Err(EnrollFault::Enrolled(_))));
        let mut ended = documents.clone();
        let status = ended.hypervisors.get_mut(&name()).unwrap().status.as_mut().unwrap();
        status.agent.as_mut().unwrap().not_after = Some(keelway_api::Time(now()));
        assert!(again(&ended).is_ok());
        let revoked = revoke_agent(&documents, &name(), &mut minter(), now()).unwrap();
        let mut serials = agent(&documents).serials();
        serials.sort();
        assert_eq!((serials.len(), listed(&revoked).0), (2, serials));
        assert!(agent(&revoked).revoked);
        assert!(!revoked.secrets.keys().any(|secret| secret.name == "enroll-hv-1"));
        assert!(!agent(&issued(&revoked).0).revoked);
    }

    #[test]
    fn a_missing_or_unenrolled_agent_is_not_revoked() {
        let revoke = |name: &str| revoke_agent(&documents(), &name.parse().unwrap(), &mut minter(), now());
        assert!(matches!(revoke("hv-2"), Err(EnrollFault::Missing(_))));
        assert!(matches!(revoke("hv-1"), Err(EnrollFault::Never(_))));
    }
}
