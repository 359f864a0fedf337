//! Authorities, certificates, keys and kubeconfigs, as values.
//!
//! This crate does no IO, reads no clock and has no source of randomness. The time and the generator are arguments, and signatures are
//! deterministic (RFC 6979). The same inputs and the same seed therefore yield the same bytes.
//!
//! All keys of certificates and tokens are ECDSA P-256. A table in the planner defines the certificates of a cluster with their names and usages.
//! This crate implements the mechanism:
//!
//! - [`Authority`] signs a [`LeafRequest`] into an [`IssuedCertificate`] for a [`Validity`], and signs lists of revoked certificates.
//! - [`ServiceAccountKey`], [`EncryptionKey`] and [`WireGuardKey`] are keys without certificates.
//! - [`Generations`] holds the `next`, `active` and `previous` generation of each, and writes them to a Secret.
//! - [`CertificateFacts`], [`key_matches_certificate`] and [`verify_issued_by`] read and check existing certificates.
//! - [`Kubeconfig`] is the file that a client of Kubernetes reads.
//! - A worker joins with a [`JoinToken`]. An agent is enrolled with an [`EnrollmentToken`].

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
mod renewal_proof;
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
pub use keyring::{
    AuthorityKeyring, EncryptionKeyring, KeyringError, RetiredAuthority, SecretData, ServiceAccountKeyring,
};
pub use kubeconfig::{
    AuthoritySource, ClientIdentity, Kubeconfig, KubeconfigBuilder, KubeconfigCluster, KubeconfigError,
};
pub use leaf::{CertificateUsage, IssuedCertificate, LeafError, LeafRequest};
pub use rand_core::CryptoRng;
pub use renewal_proof::{ProvenCertificate, RenewalProofError, sign_renewal, verify_once_issued, verify_renewal};
pub use requested::RequestedError;
pub use revocation::RevocationError;
pub use serial::{Serial, SerialError};
pub use service_account::ServiceAccountKey;
pub use signing_request::{SigningRequestError, client_signing_request, server_signing_request};
pub use validity::{CLOCK_SKEW, Validity, ValidityError};
pub use verify::{VerifyError, key_matches_certificate, verify_issued_by};
pub use wireguard_key::{WireGuardKey, WireGuardKeyError};
