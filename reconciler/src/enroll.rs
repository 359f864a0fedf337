//! Certificates of an installation, before any of its agents on a network can be reached.

use keelway_api::{Documents, jiff::Timestamp, name::HypervisorName};
use keelway_planner::{agent_identity, installation_authority, installation_certificates};

use crate::{Minter, PassError, certificates, pass::identified, tls};

/// What an agent answers with on a network, PEM.
pub struct AgentCredentials {
    /// Its certificate.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The authorities that its driver is known by.
    pub authorities: Vec<u8>,
}

/// The documents with all certificates that their agents on networks, and whoever drives them, want.
pub fn enroll(documents: &Documents, minter: &mut dyn Minter, now: Timestamp) -> Result<Documents, PassError> {
    let mut documents = identified(documents, minter)?;
    let wanted = installation_certificates(&documents, &certificates::read(&documents), now);
    minter.mint(&mut documents, &wanted.map_err(PassError::Faults)?, now).map_err(PassError::Mint)?;
    Ok(documents)
}

/// What the agent of a machine answers with; none where it listens on no network, or was not enrolled.
#[must_use]
pub fn agent_credentials(documents: &Documents, machine: &HypervisorName) -> Option<AgentCredentials> {
    let id = documents.installation()?;
    let identity = agent_identity(id, machine);
    let value = |secret, key: &str| tls::value(documents, secret, key).ok().map(<[u8]>::to_vec);
    Some(AgentCredentials {
        certificate: value(&identity.secret, &format!("{}.crt", identity.name))?,
        key: value(&identity.secret, &format!("{}.key", identity.name))?,
        authorities: value(&installation_authority(id), "bundle.crt")?,
    })
}
