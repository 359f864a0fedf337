//! The checks of a cluster before its upgrade to the next minor version of Kubernetes.

use core::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a cluster is upgraded to another release of Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpgradeSpec {
    /// Checks whose findings do not stop an upgrade to the next minor version: `DeprecatedAPIs`, `KubeletVersions`,
    /// `Webhooks`. `keelway cluster upgrade --ignore-preflight-errors` sets it. See docs/upgrades.md.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore_preflight_errors: Vec<PreflightCheck>,
}

impl UpgradeSpec {
    pub(crate) fn is_default(&self) -> bool {
        self.ignore_preflight_errors.is_empty()
    }

    /// Returns whether findings of a check do not stop an upgrade.
    #[must_use]
    pub fn ignores(&self, check: PreflightCheck) -> bool {
        self.ignore_preflight_errors.contains(&check)
    }
}

/// A check of a cluster before its upgrade to the next minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum PreflightCheck {
    /// Clients use APIs that the new minor version no longer serves.
    #[serde(rename = "DeprecatedAPIs")]
    DeprecatedApis,
    /// Kubelets would be more than three minor versions older than the API servers.
    KubeletVersions,
    /// Admission webhooks that do not respond would refuse what API servers write when they start.
    Webhooks,
}

impl PreflightCheck {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::DeprecatedApis, Self::KubeletVersions, Self::Webhooks];

    /// Returns its name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DeprecatedApis => "DeprecatedAPIs",
            Self::KubeletVersions => "KubeletVersions",
            Self::Webhooks => "Webhooks",
        }
    }
}

impl fmt::Display for PreflightCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::PreflightCheck;

    #[test]
    fn a_check_has_its_name_in_documents() {
        for check in PreflightCheck::ALL {
            assert_eq!(serde_json::to_value(check).unwrap(), check.name());
        }
    }
}
