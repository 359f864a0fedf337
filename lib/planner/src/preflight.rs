//! The checks of a cluster before its upgrade to the next minor version of Kubernetes: what would fail with it is found before anything changes.

mod finding;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use keelway_api::{
    Cluster, Documents,
    machine::ObservedValue,
    preflight::UpgradeSpec,
    release::{Release, find},
};

pub use self::finding::{PreflightBlocker, PreflightFinding};
use crate::{PassObservation, tenant::Tenant};

/// The number of minor versions that a kubelet may be older than an API server (<https://kubernetes.io/releases/version-skew-policy/>).
const KUBELET_SKEW: u32 = 3;

/// What the checks read in a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpgradePreflight {
    /// The versions of the kubelets, by Node: `v1.36.3`.
    pub kubelets: BTreeMap<String, String>,
    /// The deprecated APIs that clients requested from an API server since it started.
    pub deprecated_apis: BTreeSet<DeprecatedApi>,
    /// The admission webhooks that do not respond, and that API servers ask about what they write themselves.
    pub silent_webhooks: BTreeSet<SilentWebhook>,
}

/// A deprecated API that clients requested.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeprecatedApi {
    /// The resource with its version and group: `volumeattributesclasses.v1beta1.storage.k8s.io`.
    pub resource: String,
    /// The number of the minor version that does not serve it: 37 for 1.37.
    pub removed_in: u32,
}

/// An admission webhook without an endpoint that is ready.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SilentWebhook {
    /// The configuration, as kubectl names it: `validatingwebhookconfiguration/policies`.
    pub configuration: String,
    /// The name of the webhook.
    pub name: String,
    /// The namespace and name of its Service: `policies/webhook`.
    pub service: String,
}

/// Whether the next change of a cluster begins its upgrade to another minor version, so that a pass needs what the checks read.
#[must_use]
pub fn begins_minor_upgrade(documents: &Documents, cluster: &Cluster) -> bool {
    let (Some(id), Some(wanted)) = (cluster.id(), find(&cluster.spec.version)) else { return false };
    let staying = documents.components_of(id).filter(|(_, component)| !component.is_leaving());
    let newest = staying.filter_map(|(_, component)| find(&component.spec.version)).max();
    let may_change = !cluster.spec.paused && cluster.is_awake() && cluster.birth().is_some();
    may_change && newest.is_some_and(|newest| newest.minor() < wanted.minor())
}

/// Returns what keeps a cluster from its upgrade to the next minor version.
pub(crate) fn blocker(tenant: &Tenant, seen: &PassObservation, to: Release) -> Option<PreflightBlocker> {
    let unknown = |why: &str| Some(PreflightBlocker::Unknown { version: to, why: String::from(why) });
    match seen.preflights.get(tenant.id) {
        None => unknown("it was not asked yet"),
        Some(ObservedValue::Unreachable { why, .. }) => unknown(why),
        Some(ObservedValue::Known(preflight)) => {
            let findings = preflight.findings(to, &tenant.document.spec.upgrade);
            (!findings.is_empty()).then_some(PreflightBlocker::Failed { version: to, findings })
        }
    }
}

impl UpgradePreflight {
    /// Returns what would fail with a minor version, without what is to be ignored.
    fn findings(&self, to: Release, spec: &UpgradeSpec) -> Vec<PreflightFinding> {
        let old = |version: &&String| minor_of(version).is_some_and(|minor| minor + KUBELET_SKEW < to.minor());
        let kubelets = self.kubelets.iter().filter(|(_, version)| old(version));
        let kubelets: Vec<String> = kubelets.map(|(node, version)| alloc::format!("{node} ({version})")).collect();
        let removed = self.deprecated_apis.iter().filter(|api| api.removed_in <= to.minor());
        let removed: Vec<String> = removed.map(|api| api.resource.clone()).collect();
        let silent: Vec<SilentWebhook> = self.silent_webhooks.iter().cloned().collect();
        let found = [
            (!removed.is_empty()).then_some(PreflightFinding::DeprecatedApis { minor: to.minor(), resources: removed }),
            (!kubelets.is_empty()).then_some(PreflightFinding::KubeletVersions { minor: to.minor(), kubelets }),
            (!silent.is_empty()).then_some(PreflightFinding::Webhooks(silent)),
        ];
        found.into_iter().flatten().filter(|finding| !spec.ignores(finding.check())).collect()
    }
}

/// Returns the number of the minor version: 36 for `v1.36.3`.
fn minor_of(version: &str) -> Option<u32> {
    version.strip_prefix("v1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use alloc::{borrow::ToOwned, string::ToString};

    use keelway_api::preflight::PreflightCheck;

    use super::*;

    fn preflight() -> UpgradePreflight {
        let kubelets = [("w1", "v1.34.4"), ("w2", "v1.33.9"), ("w3", "v1.37.0-beta.1"), ("w4", "unknown")];
        let api = |resource: &str, removed_in| DeprecatedApi { resource: resource.to_owned(), removed_in };
        UpgradePreflight {
            kubelets: kubelets.map(|(node, version)| (node.to_owned(), version.to_owned())).into(),
            deprecated_apis: [api("a.v1beta1.example.com", 37), api("b.v1beta1.example.com", 38)].into(),
            silent_webhooks: [SilentWebhook {
                configuration: "validatingwebhookconfiguration/policies".to_owned(),
                name: "check.example.com".to_owned(),
                service: "policies/webhook".to_owned(),
            }]
            .into(),
        }
    }

    fn texts(to: &str, ignored: &[PreflightCheck]) -> Vec<String> {
        let spec = UpgradeSpec { ignore_preflight_errors: ignored.to_vec() };
        preflight().findings(find(to).unwrap(), &spec).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_check_names_what_would_fail() {
        let [apis, kubelets, webhooks] = texts("1.37.0", &[]).try_into().unwrap();
        assert!(apis.contains("a.v1beta1.example.com") && !apis.contains("b.v1beta1"), "{apis}");
        assert!(kubelets.contains("w2 (v1.33.9)") && !kubelets.contains("w1"), "{kubelets}");
        assert!(webhooks.contains("check.example.com") && webhooks.contains("policies/webhook"), "{webhooks}");
    }

    #[test]
    fn what_the_next_version_still_serves_is_no_finding() {
        let found = texts("1.36.3", &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("check.example.com"), "{found:?}");
    }

    #[test]
    fn a_check_is_ignored_by_its_name() {
        assert_eq!(texts("1.37.0", &PreflightCheck::ALL), Vec::<String>::new());
        assert_eq!(texts("1.37.0", &[PreflightCheck::Webhooks]).len(), 2);
        assert_eq!(texts("1.37.0", &[PreflightCheck::DeprecatedApis, PreflightCheck::KubeletVersions]).len(), 1);
    }
}
