//! Mutual TLS between Keelway's own programs: TLS 1.3, both sides under one authority `infrastructure`.
//!
//! Files are checked before each handshake, and read again if they have changed. If the new files cannot be used, that is logged once, and the
//! earlier ones stay in use.

mod client;
pub mod component;
mod current;
mod files_version;
pub mod https;
mod identity;
mod log_limit;
mod open_server;
mod provisional;
mod server;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::client::TlsClient;
pub use self::files_version::FilesVersion;
pub use self::log_limit::LogRateLimiter;
pub use self::open_server::OpenTlsServer;
pub use self::provisional::{GreetedConnection, ProvisionalServer, connect_unverified, read_client_hello};
pub use self::server::{PeerCertificate, TlsServer, UnauthorizedPeer};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The files of one identity, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate and its intermediates, up to the authority.
    pub certificate_file: PathBuf,
    /// The private key of the certificate.
    pub key_file: PathBuf,
    /// The certificates of the authority `infrastructure`, which verify the other side.
    pub authority_file: PathBuf,
    /// The lists of certificates that the authority revoked. If there are several authorities, the file holds one list for each.
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
        /// The cause.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// A file holds no certificate, or no revocation list.
    #[error("there is no {what} in {}", path.display())]
    Empty {
        /// What is missing.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Two authorities have the same name. The TLS library would use the first one's revocation list for both.
    #[error(
        "two authorities in {} have the same name, but revocation lists are matched by name: keep only one of them",
        path.display()
    )]
    Ambiguous {
        /// The file.
        path: PathBuf,
    },
    /// A certificate or key is not PEM.
    #[error("a certificate or key is not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The server's own certificate cannot be parsed.
    #[error("cannot read the certificate in {}", path.display())]
    Own {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: keelway_pki::CertificateError,
    },
    /// The TLS library refuses the certificate, the key or the authority.
    #[error("the certificate, key and authority do not match")]
    Unusable(#[source] rustls::Error),
    /// The authority cannot verify any peer.
    #[error("the authority cannot verify certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// A handshake did not result in a connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The handshake failed.
    #[error("the TLS handshake failed")]
    Failed(#[source] io::Error),
    /// The handshake took too long.
    #[error("the TLS handshake did not complete within {} s", HANDSHAKE.as_secs())]
    TimedOut,
    /// The client speaks none of the server's protocols.
    #[error("the client does not speak {}", .0.join(" or "))]
    Protocol(&'static [&'static str]),
    /// The peer is not authorized.
    #[error(transparent)]
    Unwanted(#[from] UnauthorizedPeer),
}
