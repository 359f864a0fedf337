//! Rotations of a cluster's keys: what a person requests, and what `status.rotations` records.

use core::fmt;
use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Cluster;

/// The keys and authorities of a cluster that can be rotated while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RotatedKey {
    /// The key that signs service account tokens.
    ServiceAccount,
    /// The key that encrypts Secrets in etcd.
    Encryption,
    /// The authority for etcd members and their clients.
    EtcdAuthority,
    /// The authority for requests that API servers pass on to aggregated API servers.
    FrontProxyAuthority,
    /// The authority for connections between Keelway's own components.
    InfrastructureAuthority,
    /// The authority for API servers, users, and workers or fleet agents.
    KubernetesAuthority,
}

impl RotatedKey {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ServiceAccount,
        Self::Encryption,
        Self::EtcdAuthority,
        Self::FrontProxyAuthority,
        Self::InfrastructureAuthority,
        Self::KubernetesAuthority,
    ];

    /// Returns its field in `spec.rotations` and `status.rotations`.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceAccountKey",
            Self::Encryption => "encryptionKey",
            Self::EtcdAuthority => "etcdAuthority",
            Self::FrontProxyAuthority => "frontProxyAuthority",
            Self::InfrastructureAuthority => "infrastructureAuthority",
            Self::KubernetesAuthority => "kubernetesAuthority",
        }
    }

    /// Returns the flag of `keelway cluster rotate` that names it.
    #[must_use]
    pub fn flag(self) -> &'static str {
        match self {
            Self::ServiceAccount => "--service-account-key",
            Self::Encryption => "--encryption-key",
            Self::EtcdAuthority => "--authority etcd",
            Self::FrontProxyAuthority => "--authority front-proxy",
            Self::InfrastructureAuthority => "--authority infrastructure",
            Self::KubernetesAuthority => "--authority kubernetes",
        }
    }
}

impl fmt::Display for RotatedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ServiceAccount => "service account key",
            Self::Encryption => "encryption key",
            Self::EtcdAuthority => "etcd authority",
            Self::FrontProxyAuthority => "front-proxy authority",
            Self::InfrastructureAuthority => "infrastructure authority",
            Self::KubernetesAuthority => "kubernetes authority",
        })
    }
}

/// Requests to rotate keys of the cluster while it runs. See docs/rotation.md.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RotationsSpec {
    /// The key that signs service account tokens. `keelway cluster rotate --service-account-key` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_key: Option<RotationRequest>,
    /// The key that encrypts Secrets in etcd. `keelway cluster rotate --encryption-key` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_key: Option<RotationRequest>,
    /// The authority for etcd members and their clients. `keelway cluster rotate --authority etcd` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_authority: Option<RotationRequest>,
    /// The authority for requests that API servers pass on to aggregated API servers. `keelway cluster rotate --authority front-proxy`
    /// sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front_proxy_authority: Option<RotationRequest>,
    /// The authority for connections between Keelway's own components. `keelway cluster rotate --authority infrastructure` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_authority: Option<RotationRequest>,
    /// The authority for API servers, users, and workers or fleet agents. `keelway cluster rotate --authority kubernetes` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_authority: Option<RotationRequest>,
}

/// A request to rotate one key. A request is executed once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RotationRequest {
    /// When the rotation was requested. A request with another time is another rotation, which begins after the last one
    /// has ended.
    pub requested_at: Time,
    /// Whether the previous key is removed once the new one is in use. Everything that only the previous key verifies or
    /// decrypts is invalid from then on. Until it is true, both keys are valid.
    #[serde(default, skip_serializing_if = "is_false")]
    pub complete: bool,
    /// Whether the previous key is removed as soon as possible, because it was stolen. The rotation does not wait for machines that do not respond, and
    /// for workers or fleet agents that do not follow in time, which need another token. It implies `complete`. See docs/rotation.md.
    #[serde(default, skip_serializing_if = "is_false")]
    pub immediate: bool,
}

impl RotationRequest {
    /// Returns whether the previous key is removed once the new one is in use.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete || self.immediate
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The last rotation of each key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RotationsStatus {
    /// The key that signs service account tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_key: Option<KeyRotation>,
    /// The key that encrypts Secrets in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_key: Option<KeyRotation>,
    /// The authority for etcd members and their clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_authority: Option<KeyRotation>,
    /// The authority for requests that API servers pass on to aggregated API servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front_proxy_authority: Option<KeyRotation>,
    /// The authority for connections between Keelway's own components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_authority: Option<KeyRotation>,
    /// The authority for API servers, users, and workers or fleet agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_authority: Option<KeyRotation>,
}

/// The rotation of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyRotation {
    /// The request that it executes.
    pub requested_at: Time,
    /// The current phase.
    pub phase: RotationPhase,
    /// When the phase began.
    pub since: Time,
    /// While the key is `Announcing`: a digest that identifies the next key, and reveals nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// While Secrets are written again with the new key: the number of those that were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewritten: Option<u64>,
    /// The workers or fleet agents that had not followed when a phase ended and, of an immediate rotation, the components on machines that did not respond. At most 100.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub left_behind: BTreeSet<String>,
}

/// The phase of a rotation. It ends when its effect was observed on every machine that is concerned, and never returns to
/// an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum RotationPhase {
    /// The next key is distributed to everything that verifies or decrypts with it. It is not in use yet.
    Announcing,
    /// The next key is the active one. The components that sign or encrypt are replaced one after the other. Of an authority:
    /// all certificates are issued again.
    Activating,
    /// Of the encryption key only: every Secret is written again, so that the new key encrypts it.
    Reencrypting,
    /// Only the new key signs or encrypts. The previous one is still valid, until the request says `complete`.
    Prepared,
    /// The previous key is removed from all components.
    Retiring,
    /// The rotation has ended.
    Completed,
}

impl fmt::Display for RotationPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl RotationsSpec {
    /// Returns whether nothing is requested, so that documents do not contain it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the request for a key.
    #[must_use]
    pub fn request(&self, key: RotatedKey) -> Option<&RotationRequest> {
        match key {
            RotatedKey::ServiceAccount => self.service_account_key.as_ref(),
            RotatedKey::Encryption => self.encryption_key.as_ref(),
            RotatedKey::EtcdAuthority => self.etcd_authority.as_ref(),
            RotatedKey::FrontProxyAuthority => self.front_proxy_authority.as_ref(),
            RotatedKey::InfrastructureAuthority => self.infrastructure_authority.as_ref(),
            RotatedKey::KubernetesAuthority => self.kubernetes_authority.as_ref(),
        }
    }

    /// Returns the place of the request for a key.
    pub fn request_mut(&mut self, key: RotatedKey) -> &mut Option<RotationRequest> {
        match key {
            RotatedKey::ServiceAccount => &mut self.service_account_key,
            RotatedKey::Encryption => &mut self.encryption_key,
            RotatedKey::EtcdAuthority => &mut self.etcd_authority,
            RotatedKey::FrontProxyAuthority => &mut self.front_proxy_authority,
            RotatedKey::InfrastructureAuthority => &mut self.infrastructure_authority,
            RotatedKey::KubernetesAuthority => &mut self.kubernetes_authority,
        }
    }
}

impl RotationsStatus {
    /// Returns the place of the rotation of a key.
    pub fn rotation_mut(&mut self, key: RotatedKey) -> &mut Option<KeyRotation> {
        match key {
            RotatedKey::ServiceAccount => &mut self.service_account_key,
            RotatedKey::Encryption => &mut self.encryption_key,
            RotatedKey::EtcdAuthority => &mut self.etcd_authority,
            RotatedKey::FrontProxyAuthority => &mut self.front_proxy_authority,
            RotatedKey::InfrastructureAuthority => &mut self.infrastructure_authority,
            RotatedKey::KubernetesAuthority => &mut self.kubernetes_authority,
        }
    }
}

impl KeyRotation {
    /// Returns whether it has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.phase != RotationPhase::Completed
    }
}

impl Cluster {
    /// Returns the last rotation of a key.
    #[must_use]
    pub fn rotation(&self, key: RotatedKey) -> Option<&KeyRotation> {
        let all = self.status.as_ref()?.rotations.as_ref()?;
        match key {
            RotatedKey::ServiceAccount => all.service_account_key.as_ref(),
            RotatedKey::Encryption => all.encryption_key.as_ref(),
            RotatedKey::EtcdAuthority => all.etcd_authority.as_ref(),
            RotatedKey::FrontProxyAuthority => all.front_proxy_authority.as_ref(),
            RotatedKey::InfrastructureAuthority => all.infrastructure_authority.as_ref(),
            RotatedKey::KubernetesAuthority => all.kubernetes_authority.as_ref(),
        }
    }

    /// Returns the rotation of a key that has not ended.
    #[must_use]
    pub fn running_rotation(&self, key: RotatedKey) -> Option<&KeyRotation> {
        self.rotation(key).filter(|rotation| rotation.is_running())
    }

    /// Returns whether the rotation of a key that runs does not wait for what does not respond. That of the encryption key always waits: an API server that
    /// cannot be observed may write Secrets with the previous key, which no other one could read without it.
    #[must_use]
    pub fn rotates_immediately(&self, key: RotatedKey) -> bool {
        let is_possible = key != RotatedKey::Encryption;
        let request = self.spec.rotations.request(key).filter(|request| is_possible && request.immediate);
        let running = self.running_rotation(key);
        request.zip(running).is_some_and(|(request, running)| request.requested_at == running.requested_at)
    }

    /// Returns whether any rotation that runs is [immediate](Self::rotates_immediately).
    #[must_use]
    pub fn has_immediate_rotation(&self) -> bool {
        RotatedKey::ALL.iter().any(|key| self.rotates_immediately(*key))
    }

    /// Returns the request to rotate a key, if it was not executed and no other rotation of the key runs.
    #[must_use]
    pub fn pending_rotation(&self, key: RotatedKey) -> Option<&RotationRequest> {
        let request = self.spec.rotations.request(key)?;
        let may_begin =
            self.rotation(key).is_none_or(|last| !last.is_running() && last.requested_at != request.requested_at);
        may_begin.then_some(request)
    }
}
