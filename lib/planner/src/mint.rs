//! Requests for keys and certificates. They are minted between planning and executing.

use alloc::{string::String, vec::Vec};
use core::{fmt, net::IpAddr};

use keelway_api::{documents::SecretName, duration::Span};

/// One key or certificate to mint into a Secret. Authorities precede what they sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MintRequest {
    /// A certificate authority, in a Secret of its own.
    Authority {
        /// The Secret that it is stored in.
        secret: SecretName,
        /// The common name of its certificate.
        common_name: String,
        /// Whether it revokes certificates. If so, its common name contains its key's fingerprint, so that no other generation has the same name.
        revokes: bool,
        /// Its lifetime.
        ttl: Span,
    },
    /// The key pair that signs service-account tokens.
    ServiceAccountKey {
        /// The Secret that it is stored in.
        secret: SecretName,
    },
    /// The next generation of the key pair that signs service-account tokens. If the Secret has one, it stays.
    NextServiceAccountKey {
        /// The Secret that it is stored in.
        secret: SecretName,
    },
    /// The next generation of the key that encrypts Secrets at rest in etcd. If the Secret has one, it stays.
    NextEncryptionKey {
        /// The Secret that it is stored in.
        secret: SecretName,
    },
    /// The next generation of an authority. If the Secret has one, it stays.
    NextAuthority {
        /// The Secret that it is stored in.
        secret: SecretName,
        /// The beginning of its certificate's common name, which ends with its key's fingerprint.
        common_name: String,
        /// Its lifetime.
        ttl: Span,
    },
    /// The key that encrypts Secrets at rest in etcd, or the one that snapshots are sealed to.
    EncryptionKey {
        /// The Secret that it is stored in.
        secret: SecretName,
    },
    /// A WireGuard key pair, as `NAME.key` and `NAME.pub`.
    WireGuardKey {
        /// The Secret that it is stored in.
        secret: SecretName,
        /// The name within the Secret.
        name: String,
    },
    /// A certificate with its key, as `NAME.crt` and `NAME.key`.
    Certificate {
        /// The Secret that it is stored in.
        secret: SecretName,
        /// The name within the Secret.
        name: String,
        /// The authority that signs it.
        authority: SecretName,
        /// The generation of the authority.
        generation: AuthorityGeneration,
        /// The subject that it identifies.
        subject: CertificateSubject,
        /// Its lifetime.
        ttl: Span,
    },
    /// A signed list of revoked certificates.
    RevocationList {
        /// The Secret that it is stored in.
        secret: SecretName,
        /// The key within the Secret.
        name: String,
        /// The authority that signs it.
        authority: SecretName,
        /// The serial numbers, in hexadecimal digits.
        serials: Vec<String>,
        /// Its validity.
        ttl: Span,
    },
}

impl MintRequest {
    /// Returns the Secret that the result is stored in.
    #[must_use]
    pub fn secret(&self) -> &SecretName {
        match self {
            Self::Authority { secret, .. }
            | Self::ServiceAccountKey { secret }
            | Self::NextServiceAccountKey { secret }
            | Self::NextEncryptionKey { secret }
            | Self::NextAuthority { secret, .. }
            | Self::EncryptionKey { secret }
            | Self::WireGuardKey { secret, .. }
            | Self::Certificate { secret, .. }
            | Self::RevocationList { secret, .. } => secret,
        }
    }
}

/// Which generation of an authority signs a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthorityGeneration {
    /// The one in use.
    #[default]
    Active,
    /// The one before it: for servers whose clients may not trust the active one yet.
    Previous,
}

/// The subject of a certificate and its usages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSubject {
    /// The common name. Kubernetes reads it as the user.
    pub common_name: String,
    /// The organizations. Kubernetes reads them as groups.
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
            Self::Authority { secret, .. } => write!(f, "create authority {}", secret.name),
            Self::ServiceAccountKey { secret } | Self::EncryptionKey { secret } => {
                write!(f, "create key {}", secret.name)
            }
            Self::NextServiceAccountKey { secret } | Self::NextEncryptionKey { secret } => {
                write!(f, "create the next key of {}", secret.name)
            }
            Self::NextAuthority { secret, .. } => write!(f, "create the next generation of authority {}", secret.name),
            Self::WireGuardKey { secret, name } => write!(f, "create key {}/{name}", secret.name),
            Self::Certificate { secret, name, .. } => write!(f, "issue certificate {}/{name}", secret.name),
            Self::RevocationList { secret, name, .. } => write!(f, "sign revocation list {}/{name}", secret.name),
        }
    }
}
