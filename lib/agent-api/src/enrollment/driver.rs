//! The driver's side of an enrolment.

use std::io;

use keelway_api::{hypervisor::agent_name, name::HypervisorName};
use keelway_pki::{EnrollmentSide, EnrollmentToken};
use keelway_tls::{HandshakeError, connect_unverified};
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    GrantedIdentity,
    frame::{self, OF_STRANGERS},
};
use crate::proto;

/// A machine was not enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// The machine's name cannot be the name in a certificate.
    #[error("the machine's name is not valid in a certificate")]
    Name(#[from] InvalidDnsNameError),
    /// The TLS handshake failed.
    #[error("cannot connect to its agent")]
    Handshake(#[from] HandshakeError),
    /// The connection broke.
    #[error("its agent closed the connection")]
    Io(#[from] io::Error),
    /// The agent refused the enrolment.
    #[error("its agent refused: {0}")]
    Refused(String),
    /// The peer does not hold the token.
    #[error(
        "the agent at this address does not hold the token that was created for this machine: it is another machine, or the \
         connection is intercepted"
    )]
    Proof,
    /// No certificate could be issued.
    #[error("cannot issue a certificate for it: {0}")]
    Sign(String),
}

/// Enrols a machine over a connection to its agent. `sign` issues a certificate for the agent's signing request. It must use only the key of the
/// request.
pub async fn enroll<S>(
    stream: S,
    machine: &HypervisorName,
    token: &EnrollmentToken,
    sign: impl FnOnce(&str) -> Result<GrantedIdentity, String>,
) -> Result<(), EnrollError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(agent_name(machine))?;
    let (mut stream, channel) = connect_unverified(name, stream).await?;
    let hello = proto::EnrollHello { token: token.id.clone(), proof: token.proof(EnrollmentSide::Driver, &channel) };
    frame::write(&mut stream, &hello).await?;
    let answer: proto::EnrollAnswer = frame::read(&mut stream, OF_STRANGERS).await?;
    if !answer.refused.is_empty() {
        return Err(EnrollError::Refused(answer.refused));
    }
    if !token.proves(EnrollmentSide::Agent, &channel, &answer.proof) {
        return Err(EnrollError::Proof);
    }
    let GrantedIdentity { certificate, trust } = sign(&answer.signing_request).map_err(EnrollError::Sign)?;
    let grant = proto::EnrollGrant { certificate, authorities: trust.authorities, revoked: trust.revoked };
    frame::write(&mut stream, &grant).await?;
    let end: proto::EnrollEnd = frame::read(&mut stream, OF_STRANGERS).await?;
    if end.refused.is_empty() { Ok(()) } else { Err(EnrollError::Refused(end.refused)) }
}
