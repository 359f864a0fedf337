//! Mutual TLS between Keelway's own parts: TLS 1.3, both sides under one authority `infrastructure`.
//!
//! Files are looked at before each handshake, and read again when they have changed. What cannot be used is logged once, and
//! what was used before goes on.

mod client;
mod current;
mod files_version;
mod identity;
mod log_limit;
mod provisional;
mod server;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::client::TlsClient;
pub use self::files_version::FilesVersion;
pub use self::log_limit::LogRateLimiter;
pub use self::provisional::{GreetedConnection, ProvisionalServer, connect_unverified, read_client_hello};
pub use self::server::{PeerCertificate, TlsServer, UnauthorizedPeer};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The files of one identity, PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The certificates of the authority `infrastructure`: whom the other side is verified by.
    pub authority_file: PathBuf,
    /// The list of certificates that the authority revoked; where there are several authorities, one of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocation_file: Option<PathBuf>,
}

/// An identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// There is no certificate in a file, or no list of revoked ones.
    #[error("there is no {what} in {}", path.display())]
    Empty {
        /// What should be there.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The TLS library takes the list of the first authority of a name for that of all of that name.
    #[error(
        "two authorities in {} have the same name, by which lists of revoked certificates are told apart: keep one of them",
        path.display()
    )]
    Ambiguous {
        /// The file.
        path: PathBuf,
    },
    /// What was given is not PEM.
    #[error("a certificate or key is not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The server's own certificate cannot be made out.
    #[error("cannot read the certificate in {}", path.display())]
    Own {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: keelway_pki::CertificateError,
    },
    /// The TLS library refuses certificate, key or authority.
    #[error("certificate, key and authority cannot be used together")]
    Unusable(#[source] rustls::Error),
    /// No other side can be verified by the authority.
    #[error("the authority cannot verify anybody")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// There is no connection to speak over.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The handshake failed.
    #[error("the TLS handshake failed")]
    Failed(#[source] io::Error),
    /// It took too long.
    #[error("no TLS handshake within {} s", HANDSHAKE.as_secs())]
    TimedOut,
    /// Whose certificate it is, may not speak here.
    #[error(transparent)]
    Unwanted(#[from] UnauthorizedPeer),
}
