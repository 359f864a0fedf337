//! Authorities, certificates, keys and kubeconfigs, as values.
//!
//! Nothing here does IO, reads a clock or holds a random source: the time and the generator are
//! arguments, and signatures are deterministic (RFC 6979), so the same inputs and the same seed
//! give the same bytes.
//!
//! All keys of certificates and tokens are ECDSA P-256. Which certificates a cluster needs, with which names and usages, is
//! the planner's table; this crate has the mechanism:
//!
//! - [`Authority`] signs a [`LeafRequest`] into an [`IssuedCertificate`], for a [`Validity`], and lists those that hold no more;
//! - [`ServiceAccountKey`], [`EncryptionKey`] and [`WireGuardKey`] are the keys that are no certificates;
//! - [`Generations`] holds the `next`, `active` and `previous` of each, and fills a Secret;
//! - [`CertificateFacts`], [`key_matches_certificate`] and [`verify_issued_by`] read what exists;
//! - [`Kubeconfig`] is the file that a client of Kubernetes reads;
//! - [`JoinToken`] is what a worker is given to join with, [`EnrollmentToken`] what an agent is given to be enrolled with.

mod authority;
mod certificate;
mod encryption_key;
mod enrollment_proof;
mod enrollment_token;
mod facts;
mod generations;
mod id;
mod join_token;
mod key;
mod keyring;
mod kubeconfig;
mod leaf;
mod name;
mod requested;
mod revocation;
mod serial;
mod service_account;
mod signing_request;
mod statement;
#[cfg(test)]
mod testing;
mod token_text;
mod validity;
mod verify;
mod wireguard_key;

pub use authority::{Authority, AuthorityCertificate, AuthorityError};
pub use certificate::CertificateError;
pub use encryption_key::{EncryptionKey, EncryptionKeyError};
pub use enrollment_proof::{EnrollmentSide, ProvenChannel};
pub use enrollment_token::{EnrollmentToken, EnrollmentTokenError};
pub use facts::CertificateFacts;
pub use generations::Generations;
pub use id::random_id;
pub use join_token::{AuthorityHash, BootstrapToken, JoinToken, JoinTokenError};
pub use key::{KeyError, PrivateKeyPem, PublicKeyPem};
pub use keyring::{AuthorityKeyring, EncryptionKeyring, KeyringError, SecretData, ServiceAccountKeyring};
pub use kubeconfig::{
    AuthoritySource, ClientIdentity, Kubeconfig, KubeconfigBuilder, KubeconfigCluster, KubeconfigError,
};
pub use leaf::{CertificateUsage, IssuedCertificate, LeafError, LeafRequest};
pub use rand_core::CryptoRng;
pub use requested::RequestedError;
pub use revocation::RevocationError;
pub use serial::{Serial, SerialError};
pub use service_account::ServiceAccountKey;
pub use signing_request::{SigningRequestError, client_signing_request};
pub use validity::{CLOCK_SKEW, Validity, ValidityError};
pub use verify::{VerifyError, key_matches_certificate, verify_issued_by};
pub use wireguard_key::{WireGuardKey, WireGuardKeyError};
