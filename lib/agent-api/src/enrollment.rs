//! Enrolment: how the agent of a machine gets its first certificate.
//!
//! ```text
//!   driver ── token id, proof ────────────────────> agent
//!          <── proof, signing request ────────────
//!          ── certificate, trusted authorities ───>   written to disk, with the used token
//!          <── done ──────────────────────────────
//! ```
//!
//! Enrolment uses TLS with a certificate that no authority vouches for. Both sides prove that they hold the token, by a MAC over key material that
//! only this connection exports. A proxy between them has therefore nothing that it could forward. The private key never leaves the machine.
//!
//! Enrolment can be interrupted at any point. Until the agent has written the result, its token stays valid, and the driver retries. After that, the
//! agent serves with its certificate. The driver then finds it enrolled at the next attempt, even if it did not receive the confirmation.

mod driver;
pub mod frame;

use keelway_api::hypervisor::agent_name;

pub use driver::{EnrollError, enroll};

/// The common name in the signing request and the certificate of every agent. The driver decides all other names in the certificate.
pub const AGENT: &str = "keelway:agent";

/// What the driver sends to an agent, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedIdentity {
    /// The agent's certificate.
    pub certificate: String,
    /// The authorities whose drivers the agent accepts.
    pub trust: DriverTrust,
}

/// The authorities whose drivers an agent accepts, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverTrust {
    /// The authorities of the agent's installation.
    pub authorities: String,
    /// The revocation lists of these authorities.
    pub revoked: String,
}

/// Returns the name in the certificate of the agent that a token is for.
#[must_use]
pub fn name_of(token: &keelway_pki::EnrollmentToken) -> Option<String> {
    token.machine.parse().ok().map(|machine| agent_name(&machine))
}
