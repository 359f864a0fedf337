//! What the checks found, and its text for people.

use alloc::{string::String, vec::Vec};

use keelway_api::{preflight::PreflightCheck, release::Release};

use super::SilentWebhook;
use crate::text::{joined, listed};

/// What keeps a cluster from its upgrade to the next minor version. The text follows "waits for".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PreflightBlocker {
    /// The cluster was not checked.
    #[error("the checks before the upgrade to {version} (docs/upgrades.md): {why}")]
    Unknown {
        /// The next release.
        version: Release,
        /// Which checks, and why, for users.
        why: String,
    },
    /// Something would fail with the next minor version.
    #[error("a person, before the upgrade to {version}: {}", joined(.findings, "; "))]
    Failed {
        /// The next release.
        version: Release,
        /// What was found.
        findings: Vec<PreflightFinding>,
    },
}

/// What one check found. The text names what to do, and the check by which it can be ignored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PreflightFinding {
    /// Clients use APIs that are removed.
    #[error(
        "clients request {}, which 1.{minor} does not serve: change these clients; API servers remember requests until they are replaced, \
         so ignore {} afterwards", listed(.resources.iter()), PreflightCheck::DeprecatedApis
    )]
    DeprecatedApis {
        /// The number of the minor version.
        minor: u32,
        /// The resources, each with its version and group.
        resources: Vec<String>,
    },
    /// Kubelets would be too old.
    #[error(
        "kubelets would be more than three minor versions older than 1.{minor}: {}; run `keelway node upgrade` on these workers first, or \
         ignore {}", listed(.kubelets.iter()), PreflightCheck::KubeletVersions
    )]
    KubeletVersions {
        /// The number of the minor version.
        minor: u32,
        /// The Nodes, each with its version.
        kubelets: Vec<String>,
    },
    /// Webhooks do not respond.
    #[error(
        "webhooks without a ready endpoint refuse what API servers write when they start: {}; repair their Services, set failurePolicy: Ignore, \
         or ignore {}", webhooks(.0), PreflightCheck::Webhooks
    )]
    Webhooks(Vec<SilentWebhook>),
}

impl PreflightFinding {
    /// Returns the check that found it.
    pub(crate) fn check(&self) -> PreflightCheck {
        match self {
            Self::DeprecatedApis { .. } => PreflightCheck::DeprecatedApis,
            Self::KubeletVersions { .. } => PreflightCheck::KubeletVersions,
            Self::Webhooks(_) => PreflightCheck::Webhooks,
        }
    }
}

fn webhooks(silent: &[SilentWebhook]) -> String {
    listed(
        silent.iter().map(|webhook| {
            alloc::format!("{} of {} (Service {})", webhook.name, webhook.configuration, webhook.service)
        }),
    )
}
