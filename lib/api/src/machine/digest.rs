//! Digests of configs and pods.

use std::collections::{BTreeMap, BTreeSet};

use super::revision;
use crate::{
    machine::{
        config::{DataRemoval, MachineConfig, Pod},
        format::ConfigFormat,
        hash::{Digest, sha256_hex},
    },
    name::{ClusterId, InstallationId, PodName},
};

/// The digests of a pod, which take longer to make than all else that is decided of it.
///
/// A driver makes them all. An agent compares those that it is sent and never makes them, so that a driver of a newer release may make
/// them in another way; only of files on its disk does it make digests itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDigests {
    /// [`Pod::digest`]: another one needs a new pod.
    pub replacement: String,
    /// Of the content of each file, in their order: SHA-256 in lowercase hexadecimal digits.
    pub files: Vec<String>,
    /// [`Pod::content_digest`]: of all of it.
    pub content: Vec<u8>,
}

impl MachineConfig {
    /// A digest of the content, the fence left out: equal digests mean the same wanted state. For drivers.
    #[must_use]
    pub fn digest(&self) -> String {
        let digests: BTreeMap<_, _> =
            self.pods.iter().map(|(name, pod)| (name.clone(), pod.content_digest())).collect();
        config_digest(self.format, &self.installation, &digests, (&self.others, &self.removals))
    }

    /// The digests of its pods. For drivers.
    #[must_use]
    pub fn pod_digests(&self) -> BTreeMap<PodName, PodDigests> {
        self.pods.iter().map(|(name, pod)| (name.clone(), pod.digests())).collect()
    }
}

/// [`MachineConfig::digest`], for who knows [`Pod::content_digest`] of each pod.
#[must_use]
pub fn config_digest(
    format: ConfigFormat,
    installation: &InstallationId,
    pods: &BTreeMap<PodName, impl AsRef<[u8]>>,
    (others, removals): (&BTreeSet<ClusterId>, &BTreeMap<PodName, DataRemoval>),
) -> String {
    revision::config(format, installation, pods, (others, removals))
}

impl Pod {
    /// All digests of it. For drivers.
    #[must_use]
    pub fn digests(&self) -> PodDigests {
        let files = self.file_digests();
        PodDigests { replacement: self.digest(), content: revision::content(self, &files).to_vec(), files }
    }

    /// All digests of it, as its driver made them of it.
    #[must_use]
    pub fn with_revision(&self, replacement: String, content: Vec<u8>) -> PodDigests {
        PodDigests { replacement, files: self.file_digests(), content }
    }

    /// A digest of all of it: equal digests mean the same pod. For drivers.
    #[must_use]
    pub fn content_digest(&self) -> Digest {
        revision::content(self, &self.file_digests())
    }

    fn file_digests(&self) -> Vec<String> {
        self.files.iter().map(|file| sha256_hex(&file.content)).collect()
    }

    /// A digest of all that needs a new pod when it changes. For drivers.
    #[must_use]
    pub fn digest(&self) -> String {
        revision::replacement(self)
    }
}
