//! The Secrets in the store of a cluster, and the keys that encrypt them.

use std::collections::BTreeSet;

use keelway_api::name::{ClusterId, PodName};
use keelway_planner::{ClusterAccess, SecretRewrite, trust::encryption_keys};

use super::{rollout_rules::ENCRYPTION, state::SimulationState};

/// The number of Secrets, and of those that one pass writes again.
const SECRETS: u64 = 800;
const PAGE: u64 = 500;

/// What is encrypted, by the names of keys.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredSecrets {
    /// The keys that encrypt at least one Secret.
    used: BTreeSet<String>,
    /// The keys of Secrets that were written since a rewrite began.
    again: BTreeSet<String>,
    /// What the cluster records.
    record: SecretRewrite,
}

impl StoredSecrets {
    pub(super) fn record(&self) -> SecretRewrite {
        self.record.clone()
    }

    /// Lets each API server write a Secret with its first key. Returns one that cannot read what is stored.
    pub(super) fn serve(&mut self, servers: &[(&PodName, Vec<String>)]) -> Option<String> {
        for key in servers.iter().filter_map(|(_, keys)| keys.first()) {
            self.write(key);
        }
        servers.iter().find_map(|(name, keys)| {
            let key = self.used.iter().find(|key| !keys.contains(key))?;
            Some(format!("{name} lacks the key {key}"))
        })
    }

    fn write(&mut self, key: &str) {
        self.used.insert(key.to_owned());
        self.again.insert(key.to_owned());
    }

    /// Writes some Secrets again by an API server that encrypts with `server_key`, and records that as a rewrite with the key of this name.
    pub(super) fn rewrite(&mut self, key_name: &str, server_key: &str) {
        if self.record.key != key_name {
            self.record = SecretRewrite { key: key_name.to_owned(), ..SecretRewrite::default() };
            self.again.clear();
        }
        self.write(server_key);
        self.record.rewritten = (self.record.rewritten + PAGE).min(SECRETS);
        self.record.is_complete = self.record.rewritten == SECRETS;
        if self.record.is_complete {
            self.used.clone_from(&self.again);
        }
    }
}

impl SimulationState {
    /// Executes one part of a rewrite at an API server.
    pub(super) fn rewrite_secrets(&mut self, id: &ClusterId, server: &ClusterAccess, key_name: &str) {
        let process = self.process_at(&server.machine, server.address);
        let keys = process.and_then(|process| encryption_keys(process.files.get(ENCRYPTION)?));
        if let Some(first) = keys.and_then(|keys| keys.first().cloned()) {
            self.rollouts.secrets.entry(id.clone()).or_default().rewrite(key_name, &first);
        }
    }
}
