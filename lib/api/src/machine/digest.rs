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

/// The digests of a pod. Computing them takes longer than every other decision about the pod.
///
/// A driver computes all of them. An agent compares those that it received and computes only digests of files on its disk, so that a driver of a
/// newer release may compute the others differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDigests {
    /// [`Pod::digest`]: a different one requires a new pod.
    pub replacement: String,
    /// The digest of each file's content, in the order of the files: SHA-256 in lowercase hexadecimal digits.
    pub files: Vec<String>,
    /// [`Pod::content_digest`], the digest of the whole pod.
    pub content: Vec<u8>,
}

impl MachineConfig {
    /// Returns a digest of the content without term and generation: equal digests mean the same desired state. For drivers.
    #[must_use]
    pub fn digest(&self) -> String {
        let digests: BTreeMap<_, _> =
            self.pods.iter().map(|(name, pod)| (name.clone(), pod.content_digest())).collect();
        config_digest(self.format, &self.installation, &digests, (&self.others, &self.removals))
    }

    /// Returns the digests of its pods. For drivers.
    #[must_use]
    pub fn pod_digests(&self) -> BTreeMap<PodName, PodDigests> {
        self.pods.iter().map(|(name, pod)| (name.clone(), pod.digests())).collect()
    }
}

/// Returns [`MachineConfig::digest`] from the [`Pod::content_digest`] of each pod.
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
    /// Returns all digests. For drivers.
    #[must_use]
    pub fn digests(&self) -> PodDigests {
        let files = self.file_digests();
        PodDigests { replacement: self.digest(), content: revision::content(self, &files).to_vec(), files }
    }

    /// Returns all digests, with those that the driver computed.
    #[must_use]
    pub fn with_revision(&self, replacement: String, content: Vec<u8>) -> PodDigests {
        PodDigests { replacement, files: self.file_digests(), content }
    }

    /// Returns a digest of the whole pod: equal digests mean equal pods. For drivers.
    #[must_use]
    pub fn content_digest(&self) -> Digest {
        revision::content(self, &self.file_digests())
    }

    fn file_digests(&self) -> Vec<String> {
        self.files.iter().map(|file| sha256_hex(&file.content)).collect()
    }

    /// Returns a digest of everything whose change requires a new pod. For drivers.
    #[must_use]
    pub fn digest(&self) -> String {
        revision::replacement(self)
    }
}
