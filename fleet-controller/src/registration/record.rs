//! What is remembered of each agent: which token it registered with, and how long its certificates are valid. Pure.
//!
//! A certificate cannot be revoked: API servers accept it until it expires. Its rights come from bindings to the user in it, which contains the
//! name of the cluster. So the name of a removed cluster rests until the last certificate for it has expired.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The record of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentRecord {
    /// The token of the last registration, until the agent has used its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<UsedToken>,
    /// The end of the last certificate that was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The certificate that was approved, and not seen since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingCertificate>,
    /// The cluster was removed from the fleet.
    #[serde(default)]
    pub removed: bool,
}

/// A bootstrap token, and the only key for which it admits a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedToken {
    /// The ID of the token, which is not secret.
    pub id: String,
    /// The SHA-256 of the public key.
    pub key: String,
}

/// A certificate that was approved, and the latest time at which it can end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingCertificate {
    /// The SHA-256 of the public key.
    pub key: String,
    /// The latest time.
    pub until: Timestamp,
}

impl AgentRecord {
    /// Returns the record after the approval of a certificate for a key.
    #[must_use]
    pub fn approved(&self, token: Option<&str>, key: &str, until: Timestamp) -> Self {
        let used = token.map(|id| UsedToken { id: id.to_owned(), key: key.to_owned() });
        Self {
            token: used.or_else(|| self.token.clone()),
            until: self.until.max(self.pending.as_ref().map(|pending| pending.until)),
            pending: Some(PendingCertificate { key: key.to_owned(), until }),
            removed: false,
        }
    }

    /// Returns the record after the approved certificate was issued.
    #[must_use]
    pub fn issued(&self, key: &str, until: Timestamp) -> Self {
        let pending = self.pending.clone().filter(|pending| pending.key != key);
        Self { until: self.until.max(Some(until)), pending, ..self.clone() }
    }

    /// Returns when the last certificate has expired.
    #[must_use]
    pub fn ends(&self) -> Option<Timestamp> {
        self.until.max(self.pending.as_ref().map(|pending| pending.until))
    }

    /// Returns until when the name must not be used, if it belonged to a cluster that was removed.
    #[must_use]
    pub fn rests_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.ends().filter(|end| self.removed && *end > now)
    }
}
