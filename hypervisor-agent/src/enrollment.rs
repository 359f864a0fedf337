//! Enrolment: how the agent of a machine gets the certificate that it is known by from then on.
//!
//! ```text
//!   driver ── which token, proof ─────────────────> agent
//!          <── proof, request for a certificate ──
//!          ── certificate, whom to trust ─────────>   on disk, the token with it
//!          <── done ──────────────────────────────
//! ```
//!
//! It goes over TLS with a certificate that nobody answers for. Both sides prove by a MAC over what that connection alone exports that
//! they hold the token, so that whoever stands between them has nothing to pass on. The private key is made where it stays.
//!
//! It may be cut off anywhere. Before the agent has written, its token is as good as before, and the driver comes again. From then on it
//! answers with its certificate, and the driver finds it enrolled when it looks next, whether it heard of it or not.

mod agent;
mod driver;
mod folder;
mod frame;

use keelway_api::hypervisor::agent_name;

pub(crate) use agent::{Enrolling, check_granted};
pub use agent::{EnrollingError, RefusedEnrollment};
pub use driver::{EnrollError, enroll};
pub(crate) use folder::EnrolledIdentity;
pub use folder::IdentityFolder;

/// The common name of every agent, and what it asks for a certificate with. The driver's side decides what it is given.
pub const AGENT: &str = "keelway:agent";

/// What the driver's side gives to an agent, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedIdentity {
    /// Its certificate.
    pub certificate: String,
    /// Whom it takes for its driver.
    pub trust: DriverTrust,
}

/// Whom an agent takes for its driver, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverTrust {
    /// The authorities of its installation.
    pub authorities: String,
    /// What these have revoked.
    pub revoked: String,
}

/// The name in the certificate of the agent that a token is for.
fn name_of(token: &keelway_pki::EnrollmentToken) -> Option<String> {
    token.machine.parse().ok().map(|machine| agent_name(&machine))
}
