//! Who drives a machine, where several could.

use keelway_api::name::InstallationId;
use serde::{Deserialize, Serialize};

/// A leader: one of several drivers of an installation, of whom one works at a time. Each begins with a term of its own, which is
/// higher than those of all before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Whose machines it drives.
    pub installation: InstallationId,
    /// Its number.
    pub term: u64,
}

impl Leader {
    /// Its number where it drives these machines; 0 for others.
    #[must_use]
    pub fn term_of(&self, installation: &InstallationId) -> u64 {
        if self.installation == *installation { self.term } else { 0 }
    }
}
