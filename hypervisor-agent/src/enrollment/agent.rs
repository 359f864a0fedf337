//! The machine's side of an enrolment.

use std::io;

use jiff::{SignedDuration, Timestamp};
use keelway_api::hypervisor::ANY_AGENT;
use keelway_pki::{
    AuthorityHash, CertificateFacts, CertificateUsage, EnrollmentSide, EnrollmentToken, IssuedCertificate, KeyError,
    LeafError, LeafRequest, PrivateKeyPem, ProvenChannel, SigningRequestError, Validity, ValidityError, VerifyError,
    client_signing_request, key_matches_certificate, verify_issued_by,
};
use keelway_tls::{GreetedConnection, HandshakeError, ProvisionalServer, TlsError};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    AGENT, DriverTrust, GrantedIdentity,
    frame::{self, OF_KNOWN, OF_STRANGERS},
    name_of,
};
use crate::{proto, report::chain_text};

/// Longer than any agent waits for its enrolment.
const PROVISIONAL: SignedDuration = SignedDuration::from_hours(24 * 365);

/// An agent that waits to be enrolled.
#[derive(Debug)]
pub(crate) struct Enrolling {
    pub(crate) token: EnrollmentToken,
    provisional: ProvisionalServer,
}

/// An agent cannot wait to be enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrollingError {
    /// The token names no machine.
    #[error("the enrolment token names no machine; make a new one with `keelway hypervisor enroll`")]
    Machine,
    /// A key could not be made.
    #[error("cannot make a provisional certificate")]
    Leaf(#[source] LeafError),
    /// The clock is at no time.
    #[error("cannot make a provisional certificate")]
    Validity(#[source] ValidityError),
    /// The TLS library does not take it.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why an enrolment came to nothing. It is told to the other side; nothing secret is in it.
#[derive(Debug, thiserror::Error)]
pub enum RefusedEnrollment {
    /// The connection broke.
    #[error("the connection broke off")]
    Io(#[from] io::Error),
    /// There was no connection to speak over.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// There is nothing to enrol with.
    #[error("this agent waits for no enrolment: start it with --enroll and a new token")]
    Nothing,
    /// It is not enrolled yet, and can be asked for nothing else.
    #[error("this agent is not enrolled yet")]
    NotYet,
    /// It was started with another token: of another machine, of another installation, or of before.
    #[error("this agent was started with another token than that")]
    Another,
    /// It is too late.
    #[error("the token ended at {0}: make a new one with `keelway hypervisor enroll`, and start the agent with it")]
    Expired(Timestamp),
    /// It was used.
    #[error("the token was used already: make a new one with `keelway hypervisor enroll`, and start the agent with it")]
    Spent,
    /// The other side does not hold the token, or speaks over another connection.
    #[error("the proof is not of who holds the token and speaks over this connection")]
    Proof,
    /// A key or a request could not be made.
    #[error("cannot make a key")]
    Key(#[source] KeyError),
    /// The request could not be made.
    #[error(transparent)]
    Request(#[from] SigningRequestError),
    /// The certificate is not this agent's.
    #[error("the certificate that was given cannot be used: {0}")]
    Certificate(&'static str),
    /// It cannot be verified.
    #[error("the certificate that was given does not hold")]
    Verify(#[from] VerifyError),
    /// It could not be kept.
    #[error("the certificate could not be kept on disk")]
    Keep(#[source] io::Error),
    /// It could not be used.
    #[error("the certificate that was given cannot be used")]
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

    /// Enrols, with whoever holds the token and nobody else. `keep` is given what came of it before the other side hears of that.
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

    /// The answer to somebody who says to hold the token, with the key that is asked for a certificate with.
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

/// What a machine is given is its own, of the installation that its token names, and of an authority that the token names.
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
        return Err(RefusedEnrollment::Certificate("its authority is none that the token names"));
    }
    Ok(())
}

/// What an agent is given is for its key, its name and its installation, and of the authority that is beside it.
pub(crate) fn check_granted(
    key: &PrivateKeyPem,
    granted: &GrantedIdentity,
    (installation, name): (&str, &str),
    now: Timestamp,
) -> Result<(), RefusedEnrollment> {
    verify_issued_by(&granted.certificate, &granted.trust.authorities, now)?;
    if !key_matches_certificate(&granted.certificate, key)? {
        return Err(RefusedEnrollment::Certificate("it is for another key"));
    }
    let facts = CertificateFacts::from_pem(&granted.certificate).map_err(VerifyError::Certificate)?;
    if facts.dns_names != [name, ANY_AGENT] {
        return Err(RefusedEnrollment::Certificate("it is for another machine"));
    }
    if ![CertificateUsage::ServerAuth, CertificateUsage::ClientAuth].iter().all(|usage| facts.usages.contains(usage)) {
        return Err(RefusedEnrollment::Certificate("it is not for both sides of a connection"));
    }
    if facts.organizations != [installation] {
        return Err(RefusedEnrollment::Certificate("it is of another installation"));
    }
    Ok(())
}
