//! The agent's side of an enrolment.

use std::io;

use jiff::{SignedDuration, Timestamp};
use keelway_agent_api::enrollment::{
    AGENT, DriverTrust, GrantedIdentity,
    frame::{self, OF_KNOWN, OF_STRANGERS},
    name_of,
};
use keelway_agent_api::proto;
use keelway_api::hypervisor::ANY_AGENT;
use keelway_base::error_chain::chain_text;
use keelway_pki::{
    AuthorityHash, CertificateFacts, CertificateUsage, EnrollmentSide, EnrollmentToken, IssuedCertificate, KeyError,
    LeafError, LeafRequest, PrivateKeyPem, ProvenChannel, SigningRequestError, Validity, ValidityError, VerifyError,
    client_signing_request, key_matches_certificate, verify_issued_by,
};
use keelway_tls::{GreetedConnection, HandshakeError, ProvisionalServer, TlsError};
use tokio::io::{AsyncRead, AsyncWrite};

/// The validity of the provisional certificate: longer than any agent waits for its enrolment.
const PROVISIONAL: SignedDuration = SignedDuration::from_hours(24 * 365);

/// An agent that waits for enrolment.
#[derive(Debug)]
pub(crate) struct Enrolling {
    pub(crate) token: EnrollmentToken,
    provisional: ProvisionalServer,
}

/// An agent cannot wait for enrolment.
#[derive(Debug, thiserror::Error)]
pub enum EnrollingError {
    /// The token names no machine.
    #[error("the enrollment token names no machine; create a new one with `keelway hypervisor enroll`")]
    Machine,
    /// The provisional certificate could not be issued.
    #[error("cannot create a provisional certificate")]
    Leaf(#[source] LeafError),
    /// The system clock is outside of the range of certificates.
    #[error("cannot create a provisional certificate")]
    Validity(#[source] ValidityError),
    /// The TLS library refused the provisional certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// An enrolment failed. The error is sent to the driver, and contains no secret.
#[derive(Debug, thiserror::Error)]
pub enum RefusedEnrollment {
    /// The connection broke.
    #[error("the connection ended")]
    Io(#[from] io::Error),
    /// The TLS handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The agent has no token.
    #[error("this agent does not wait for enrollment: start it with --enroll and a new token")]
    Nothing,
    /// The agent is not enrolled yet, and accepts only an enrolment.
    #[error("this agent is not enrolled yet")]
    NotYet,
    /// The agent was started with another token: of another machine, of another installation, or an earlier one.
    #[error("this agent was started with a different token")]
    Another,
    /// The token has expired.
    #[error("the token expired at {0}: create a new one with `keelway hypervisor enroll`, and start the agent with it")]
    Expired(Timestamp),
    /// The token was used.
    #[error(
        "the token was already used: create a new one with `keelway hypervisor enroll`, and start the agent with it"
    )]
    Spent,
    /// The driver does not hold the token, or uses another connection.
    #[error("the proof does not come from a holder of the token on this connection")]
    Proof,
    /// A key could not be created.
    #[error("cannot create a key")]
    Key(#[source] KeyError),
    /// The signing request could not be created.
    #[error(transparent)]
    Request(#[from] SigningRequestError),
    /// The certificate is not valid for this agent.
    #[error("the issued certificate cannot be used: {0}")]
    Certificate(&'static str),
    /// The certificate cannot be verified with the authorities that came with it.
    #[error("the issued certificate is not valid")]
    Verify(#[from] VerifyError),
    /// The certificate could not be stored.
    #[error("cannot store the certificate on disk")]
    Keep(#[source] io::Error),
    /// The TLS library refused the certificate.
    #[error("the issued certificate cannot be used")]
    Tls(#[from] TlsError),
}

impl Enrolling {
    pub(crate) fn new(token: EnrollmentToken, now: Timestamp) -> Result<Self, EnrollingError> {
        let request = LeafRequest {
            common_name: AGENT.to_owned(),
            organizations: Vec::new(),
            dns_names: vec![name_of(&token).ok_or(EnrollingError::Machine)?],
            ip_addresses: Vec::new(),
            usages: vec![CertificateUsage::ServerAuth],
            validity: Validity::starting(now, PROVISIONAL).map_err(EnrollingError::Validity)?,
        };
        let shown = IssuedCertificate::self_signed(&request, &mut rand::rng()).map_err(EnrollingError::Leaf)?;
        let provisional = ProvisionalServer::new(&shown.certificate_pem, shown.key_pem.expose())?;
        Ok(Self { token, provisional })
    }

    /// Enrols the agent with a driver that holds the token. `keep` stores the result before the driver gets the confirmation.
    pub(crate) async fn answer<S, K>(
        &self,
        greeted: GreetedConnection<S>,
        is_spent: bool,
        now: Timestamp,
        keep: impl FnOnce(PrivateKeyPem, GrantedIdentity) -> K,
    ) -> Result<(), RefusedEnrollment>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        K: Future<Output = Result<(), RefusedEnrollment>>,
    {
        let (mut stream, channel) = self.provisional.finish(greeted).await?;
        let hello: proto::EnrollHello = frame::read(&mut stream, OF_STRANGERS).await?;
        let answered = self.answer_hello(&hello, &channel, is_spent, now);
        let (key, answer) = match answered {
            Ok(answered) => answered,
            Err(refused) => {
                let answer = proto::EnrollAnswer { refused: refused.to_string(), ..proto::EnrollAnswer::default() };
                frame::write(&mut stream, &answer).await?;
                return Err(refused);
            }
        };
        frame::write(&mut stream, &answer).await?;
        let grant: proto::EnrollGrant = frame::read(&mut stream, OF_KNOWN).await?;
        let granted = GrantedIdentity {
            certificate: grant.certificate,
            trust: DriverTrust { authorities: grant.authorities, revoked: grant.revoked },
        };
        let kept = match check_enrolled(&self.token, &key, &granted, now) {
            Ok(()) => keep(key, granted).await,
            Err(refused) => Err(refused),
        };
        let refused = kept.as_ref().err().map(|error| chain_text(error)).unwrap_or_default();
        frame::write(&mut stream, &proto::EnrollEnd { refused }).await?;
        kept
    }

    /// Returns the answer to a driver that claims to hold the token, and the key of the signing request.
    fn answer_hello(
        &self,
        hello: &proto::EnrollHello,
        channel: &ProvenChannel,
        is_spent: bool,
        now: Timestamp,
    ) -> Result<(PrivateKeyPem, proto::EnrollAnswer), RefusedEnrollment> {
        let token = &self.token;
        if hello.token != token.id {
            return Err(RefusedEnrollment::Another);
        }
        if !token.proves(EnrollmentSide::Driver, channel, &hello.proof) {
            return Err(RefusedEnrollment::Proof);
        }
        if now >= token.expires {
            return Err(RefusedEnrollment::Expired(token.expires));
        }
        if is_spent {
            return Err(RefusedEnrollment::Spent);
        }
        let key = PrivateKeyPem::mint(&mut rand::rng()).map_err(RefusedEnrollment::Key)?;
        let answer = proto::EnrollAnswer {
            proof: token.proof(EnrollmentSide::Agent, channel),
            signing_request: client_signing_request(&key, AGENT, &token.installation)?,
            refused: String::new(),
        };
        Ok((key, answer))
    }
}

/// Checks that the certificate is for this machine and its installation, and was issued by an authority that the token names.
fn check_enrolled(
    token: &EnrollmentToken,
    key: &PrivateKeyPem,
    granted: &GrantedIdentity,
    now: Timestamp,
) -> Result<(), RefusedEnrollment> {
    let name = name_of(token).ok_or(RefusedEnrollment::Certificate("the token names no machine"))?;
    check_granted(key, granted, (&token.installation, &name), now)?;
    let hashes = AuthorityHash::of_bundle(&granted.trust.authorities);
    let hashes = hashes.map_err(|_| RefusedEnrollment::Certificate("its authorities cannot be read"))?;
    if hashes.is_empty() || !hashes.iter().all(|hash| token.authorities.contains(hash)) {
        return Err(RefusedEnrollment::Certificate("its authority is not one that the token names"));
    }
    Ok(())
}

/// Checks that the certificate is for the agent's key, name and installation, and was issued by the authority that came with it.
pub(crate) fn check_granted(
    key: &PrivateKeyPem,
    granted: &GrantedIdentity,
    (installation, name): (&str, &str),
    now: Timestamp,
) -> Result<(), RefusedEnrollment> {
    verify_issued_by(&granted.certificate, &granted.trust.authorities, now)?;
    if !key_matches_certificate(&granted.certificate, key)? {
        return Err(RefusedEnrollment::Certificate("it belongs to another key"));
    }
    let facts = CertificateFacts::from_pem(&granted.certificate).map_err(VerifyError::Certificate)?;
    if facts.dns_names != [name, ANY_AGENT] {
        return Err(RefusedEnrollment::Certificate("it belongs to another machine"));
    }
    if ![CertificateUsage::ServerAuth, CertificateUsage::ClientAuth].iter().all(|usage| facts.usages.contains(usage)) {
        return Err(RefusedEnrollment::Certificate("it is not valid for both servers and clients"));
    }
    if facts.organizations != [installation] {
        return Err(RefusedEnrollment::Certificate("it belongs to another installation"));
    }
    Ok(())
}
