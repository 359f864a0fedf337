//! The leader among several drivers of a machine.

use keelway_api::name::InstallationId;
use serde::{Deserialize, Serialize};

/// A leader: the one of several drivers of an installation that is active. Each leader starts with a term of its own, which is higher than all
/// earlier terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The installation whose machines the leader drives.
    pub installation: InstallationId,
    /// The term of the leader.
    pub term: u64,
}

impl Leader {
    /// Returns the term if the leader drives the machines of this installation, and 0 otherwise.
    #[must_use]
    pub fn term_of(&self, installation: &InstallationId) -> u64 {
        if self.installation == *installation { self.term } else { 0 }
    }
}
