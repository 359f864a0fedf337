//! Keys that are wanted. Minting itself happens between planning and executing.

use alloc::{string::String, vec::Vec};
use core::{fmt, net::IpAddr};

use keelway_api::{documents::SecretName, duration::Span};

/// One key or certificate to be minted into a Secret. Authorities come before what they sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MintRequest {
    /// A certificate authority, into a Secret of its own.
    Authority {
        /// Where it goes.
        secret: SecretName,
        /// The common name of its certificate.
        common_name: String,
        /// Whether it revokes what it signed: then its common name has its key's fingerprint, too, so that no other generation has it.
        revokes: bool,
        /// How long it lives.
        ttl: Span,
    },
    /// The key pair that signs service-account tokens.
    ServiceAccountKey {
        /// Where it goes.
        secret: SecretName,
    },
    /// The key that encrypts Secrets at rest in etcd.
    EncryptionKey {
        /// Where it goes.
        secret: SecretName,
    },
    /// A key pair of WireGuard, as `NAME.key` and `NAME.pub`.
    WireGuardKey {
        /// Where it goes.
        secret: SecretName,
        /// The name within the Secret.
        name: String,
    },
    /// A certificate with its key, as `NAME.crt` and `NAME.key`.
    Certificate {
        /// Where it goes.
        secret: SecretName,
        /// The name within the Secret.
        name: String,
        /// The authority that signs it.
        authority: SecretName,
        /// Whom it stands for.
        subject: CertificateSubject,
        /// How long it lives.
        ttl: Span,
    },
    /// A list of certificates that hold no more, signed.
    RevocationList {
        /// Where it goes.
        secret: SecretName,
        /// The key within the Secret.
        name: String,
        /// The authority that signs it.
        authority: SecretName,
        /// Their serial numbers, in hexadecimal digits.
        serials: Vec<String>,
        /// How long it holds.
        ttl: Span,
    },
}

impl MintRequest {
    /// The Secret that it goes into.
    #[must_use]
    pub fn secret(&self) -> &SecretName {
        match self {
            Self::Authority { secret, .. }
            | Self::ServiceAccountKey { secret }
            | Self::EncryptionKey { secret }
            | Self::WireGuardKey { secret, .. }
            | Self::Certificate { secret, .. }
            | Self::RevocationList { secret, .. } => secret,
        }
    }
}

/// Whom a certificate stands for, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSubject {
    /// The common name; Kubernetes reads it as the user.
    pub common_name: String,
    /// The organizations; Kubernetes reads them as groups.
    pub organizations: Vec<String>,
    /// DNS names of a server.
    pub dns_names: Vec<String>,
    /// Addresses of a server.
    pub addresses: Vec<IpAddr>,
    /// Whether it identifies a server.
    pub server: bool,
    /// Whether it identifies a client.
    pub client: bool,
}

impl fmt::Display for MintRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authority { secret, .. } => write!(f, "mint authority {}", secret.name),
            Self::ServiceAccountKey { secret } | Self::EncryptionKey { secret } => {
                write!(f, "mint key {}", secret.name)
            }
            Self::WireGuardKey { secret, name } => write!(f, "mint key {}/{name}", secret.name),
            Self::Certificate { secret, name, .. } => write!(f, "mint certificate {}/{name}", secret.name),
            Self::RevocationList { secret, name, .. } => write!(f, "sign {}/{name}", secret.name),
        }
    }
}
