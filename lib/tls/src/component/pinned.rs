//! Servers that are identified by their public keys.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustls::{
    AlertDescription, ClientConfig, DEFAULT_VERSIONS, DigitallySignedStruct, Error, OtherError, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
    version::TLS12,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};

use super::{AgentTlsError, SESSIONS};

/// The process on the port is not the container that holds this certificate.
#[derive(Debug, thiserror::Error)]
#[error("the server presents a different key than the one in the pod's certificate")]
struct AnotherKey;

/// A public key in the form of certificates (`SubjectPublicKeyInfo`).
pub type SubjectPublicKey = Vec<u8>;

/// A client of a server that is identified by its keys. Dates, names and issuers of the server's certificate are ignored.
#[derive(Debug, Clone)]
pub struct PinnedClient {
    /// The configuration of the TLS client.
    pub config: Arc<ClientConfig>,
    proof: Arc<AtomicBool>,
}

impl PinnedClient {
    /// Returns a client that accepts a server with one of these keys. The client shows the certificate of `identity` if the server requires one.
    pub fn new(keys: Vec<SubjectPublicKey>, identity: Option<(&[u8], &[u8])>) -> Result<Self, AgentTlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let proof = Arc::new(AtomicBool::new(false));
        let algorithms = provider.signature_verification_algorithms;
        let verifier = ByKey { keys, algorithms, proof: Arc::clone(&proof) };
        // In TLS 1.3, a server refuses a client certificate after the handshake, and its alert can be lost behind a request.
        let versions = if identity.is_some() { &[&TLS12][..] } else { DEFAULT_VERSIONS };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(AgentTlsError::Unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(certificate)
                    .collect::<Result<_, _>>()
                    .map_err(AgentTlsError::Pem)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(AgentTlsError::Pem)?;
                builder.with_client_auth_cert(chain, key).map_err(AgentTlsError::Unusable)?
            }
        };
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(Self { config: Arc::new(config), proof })
    }

    /// Returns whether the server proved its key and then refused the client's certificate. Must be called once after each connection; connections
    /// must not run at the same time.
    pub fn server_refused_certificate(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        self.proof.swap(false, Ordering::Relaxed) && is_about_our_certificate(error)
    }
}

/// Returns the key of the first certificate in a PEM text, which is the server's own.
pub fn public_key(certificate: &[u8]) -> Result<SubjectPublicKey, AgentTlsError> {
    let certificate = CertificateDer::from_pem_slice(certificate).map_err(AgentTlsError::Pem)?;
    key_of(&certificate).map_err(AgentTlsError::Unusable)
}

fn key_of(certificate: &CertificateDer<'_>) -> Result<SubjectPublicKey, Error> {
    Ok(ParsedCertificate::try_from(certificate)?.subject_public_key_info().to_vec())
}

#[derive(Debug)]
struct ByKey {
    keys: Vec<SubjectPublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
    /// Whether the last server has proved that it holds its key.
    proof: Arc<AtomicBool>,
}

impl ByKey {
    fn proved(&self, valid: HandshakeSignatureValid) -> HandshakeSignatureValid {
        self.proof.store(true, Ordering::Relaxed);
        valid
    }
}

impl ServerCertVerifier for ByKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.proof.store(false, Ordering::Relaxed);
        if self.keys.contains(&key_of(end_entity)?) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::Other(OtherError(Arc::new(AnotherKey))))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms).map(|valid| self.proved(valid))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms).map(|valid| self.proved(valid))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns whether an error contains a server's alert about the client's certificate.
fn is_about_our_certificate(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        // `source` of an `io::Error` skips the error inside, so it is read with `get_ref`.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref::<Error>()).or(error.downcast_ref::<Error>());
        if let Some(Error::AlertReceived(alert)) = tls {
            return matches!(
                alert,
                AlertDescription::BadCertificate
                    | AlertDescription::CertificateExpired
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::UnknownCA
            );
        }
        next = error.source();
    }
    false
}
