//! Builds TLS configurations from files.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use keelway_pki::CertificateFacts;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, TrustAnchor};

use crate::server::ServerConfiguration;
use crate::{TlsError, TlsFiles};

/// A server that requires certificates of its clients.
pub(crate) fn server(files: &TlsFiles) -> Result<ServerConfiguration, TlsError> {
    let (chain, key) = certificate_and_key(files)?;
    let organizations = organizations(&chain, &files.certificate_file)?;
    let verifier = verifier(files)?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Unusable)?
        .with_client_cert_verifier(Arc::clone(&verifier))
        .with_single_cert(chain, key)
        .map_err(TlsError::Unusable)?;
    Ok(ServerConfiguration { config: Arc::new(config), verifier, organizations })
}

/// A server that requires no certificates of its clients.
pub(crate) fn open_server(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let (chain, key) = certificate_and_key(files)?;
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(TlsError::Unusable)
}

/// A client that presents a certificate.
pub(crate) fn client(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let (chain, key) = certificate_and_key(files)?;
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Unusable)?
        .with_root_certificates(roots(&files.authority_file)?)
        .with_client_auth_cert(chain, key)
        .map_err(TlsError::Unusable)
}

fn verifier(files: &TlsFiles) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(roots(&files.authority_file)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider());
    if let Some(path) = &files.revocation_file {
        if !are_told_apart(&roots) {
            return Err(TlsError::Ambiguous { path: files.authority_file.clone() });
        }
        builder = builder.with_crls(several::<CertificateRevocationListDer<'_>>(path, "list of revoked certificates")?);
    }
    builder.build().map_err(TlsError::Verifier)
}

/// Whether each authority has a name of its own. If several have the same name, the TLS library uses the first one's revocation list for all.
fn are_told_apart(roots: &RootCertStore) -> bool {
    let name = |anchor: &TrustAnchor<'_>| anchor.subject.to_vec();
    let names: BTreeSet<_> = roots.roots.iter().map(name).collect();
    let authorities: BTreeSet<_> =
        roots.roots.iter().map(|anchor| (name(anchor), anchor.subject_public_key_info.to_vec())).collect();
    names.len() == authorities.len()
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificate_and_key(files: &TlsFiles) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(&files.certificate_file)?;
    let key = PrivateKeyDer::from_pem_file(&files.key_file)
        .map_err(|source| TlsError::Read { path: files.key_file.clone(), source })?;
    Ok((chain, key))
}

fn organizations(chain: &[CertificateDer<'_>], path: &Path) -> Result<Vec<String>, TlsError> {
    let own = chain.first().map(|own| CertificateFacts::from_der(own)).transpose();
    let own = own.map_err(|source| TlsError::Own { path: path.to_owned(), source })?;
    Ok(own.map(|facts| facts.organizations).unwrap_or_default())
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(TlsError::Unusable)?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    several(path, "certificate")
}

fn several<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, TlsError> {
    let read = |source| TlsError::Read { path: path.to_owned(), source };
    let found: Vec<T> = T::pem_file_iter(path).map_err(read)?.collect::<Result<_, _>>().map_err(read)?;
    if found.is_empty() { Err(TlsError::Empty { what, path: path.to_owned() }) } else { Ok(found) }
}
