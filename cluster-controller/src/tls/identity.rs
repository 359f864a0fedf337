//! Files to TLS configurations.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{TlsError, TlsFiles};

/// A server that asks its clients for certificates.
pub(super) fn server(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let (chain, key) = shown(files)?;
    let roots = Arc::new(roots(&files.authority_file)?);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(TlsError::Verifier)?;
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(TlsError::Unusable)
}

/// A client that shows a certificate.
pub(super) fn client(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let (chain, key) = shown(files)?;
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Unusable)?
        .with_root_certificates(roots(&files.authority_file)?)
        .with_client_auth_cert(chain, key)
        .map_err(TlsError::Unusable)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn shown(files: &TlsFiles) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(&files.certificate_file)?;
    let key = PrivateKeyDer::from_pem_file(&files.key_file)
        .map_err(|source| TlsError::Read { path: files.key_file.clone(), source })?;
    Ok((chain, key))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(TlsError::Unusable)?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |source| TlsError::Read { path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(read)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(read)?;
    if found.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(found) }
}
