//! The renewal of a worker's certificate after it expired: what the worker sends to a gateway, and what the gateway writes into the cluster.

use serde::{Deserialize, Serialize};

/// The user of gateways.
pub const GATEWAY_USER: &str = "keelway:gateway";
/// The application protocol (ALPN) of connections on which a worker renews an expired certificate. It sends one [`RenewalRequest`] as a line of JSON,
/// and the gateway responds with one [`RenewalResponse`].
pub const RENEWAL_PROTOCOL: &str = "keelway-renewal/1";
/// The longest line of that protocol, in bytes.
pub const LONGEST_RENEWAL: u64 = 32 * 1024;
/// The annotation of a CertificateSigningRequest with the expired certificate, PEM.
pub const EXPIRED_CERTIFICATE: &str = "keelway.dev/expired-certificate";
/// The annotation of a CertificateSigningRequest with the signature by the key of the expired certificate, base64.
pub const RENEWAL_SIGNATURE: &str = "keelway.dev/renewal-signature";

/// A worker requests a certificate with the proof that it has the key of an expired one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewalRequest {
    /// The expired certificate, PEM.
    pub certificate: String,
    /// The request for the new certificate, PEM.
    pub request: String,
    /// The signature by the key of the expired certificate, base64.
    pub signature: String,
}

/// The response to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RenewalResponse {
    /// The certificate, PEM.
    Signed(String),
    /// The cluster denied it.
    Denied {
        /// The reason, one word.
        reason: String,
        /// What to do.
        message: String,
    },
    /// The gateway cannot renew at the moment.
    Failed(String),
}
