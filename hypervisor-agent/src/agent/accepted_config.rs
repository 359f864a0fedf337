//! The part of the last accepted config that every release can read: its number, and what a restart of its pods needs. It is written before the
//! config itself, and read if the config cannot be read.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    hypervisor::Applied,
    machine::{ConfigFormat, Container, MachineConfig, Pod, PodDigests},
    name::{InstallationId, PodName},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config_store::StoredConfig;

/// The record. Fields that a newer release adds are ignored.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AcceptedConfigRecord {
    installation: InstallationId,
    term: u64,
    generation: u64,
    digest: String,
    /// Each is an [`AcceptedPodRecord`]. A pod that this release cannot parse is left out; the others are used.
    pods: Vec<Value>,
}

/// A pod without its files and checks. The files are on the machine, and a newer release may add kinds of checks.
#[derive(Debug, Serialize, Deserialize)]
struct AcceptedPodRecord {
    name: PodName,
    /// [`PodDigests::replacement`] of the whole pod, which identifies its sandboxes.
    replacement: String,
    pod: Pod,
}

impl AcceptedConfigRecord {
    pub(super) fn of(kept: &StoredConfig) -> Self {
        let StoredConfig { config, fence, digests } = kept;
        let with_digests = config.pods.iter().filter_map(|(name, pod)| Some((name, pod, digests.get(name)?)));
        let pods = with_digests.map(|(name, pod, digests)| AcceptedPodRecord {
            name: name.clone(),
            replacement: digests.replacement.clone(),
            pod: bare(pod),
        });
        Self {
            installation: config.installation.clone(),
            term: fence.term,
            generation: fence.generation,
            digest: fence.digest.clone(),
            // Serializing plain data cannot fail.
            pods: pods.filter_map(|pod| serde_json::to_value(pod).ok()).collect(),
        }
    }

    /// Returns the config as far as it is known. This is enough to refuse an older config, and to restart what has ended.
    pub(super) fn into_kept(self) -> StoredConfig {
        let pods = self.pods.into_iter().filter_map(|pod| serde_json::from_value::<AcceptedPodRecord>(pod).ok());
        let (mut known, mut digests) = (BTreeMap::new(), BTreeMap::new());
        for AcceptedPodRecord { name, replacement, pod } in pods {
            digests.insert(name.clone(), PodDigests { replacement, files: Vec::new(), content: Vec::new() });
            known.insert(name, pod);
        }
        let Self { installation, term, generation, digest, .. } = self;
        let fence = Applied { term, generation, digest };
        let config = MachineConfig {
            format: ConfigFormat::NEWEST,
            installation,
            term,
            generation,
            pods: known,
            others: BTreeSet::new(),
            removals: BTreeMap::new(),
        };
        StoredConfig { config, fence, digests }
    }
}

fn bare(pod: &Pod) -> Pod {
    let unchecked = |container: &Container| Container { liveness: None, ..container.clone() };
    Pod {
        user: pod.user,
        files: Vec::new(),
        data: pod.data.clone(),
        containers: pod.containers.iter().map(unchecked).collect(),
        pause_image: pod.pause_image.clone(),
        servers: None,
        start: pod.start,
        hold: pod.hold,
        registries: BTreeMap::new(),
        prefetch: BTreeSet::new(),
    }
}
