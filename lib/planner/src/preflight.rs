//! The checks of a cluster before its upgrade to the next minor version of Kubernetes: what would fail with it is found before anything changes.

mod finding;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use keelway_api::{
    Cluster, Documents, condition,
    machine::ObservedValue,
    preflight::{PreflightCheck, UpgradeSpec},
    release::{Release, find, reported_minor},
};

pub use self::finding::{PreflightBlocker, PreflightFinding};
use crate::{PassObservation, tenant::Tenant, text::joined};

/// The number of minor versions that a kubelet may be older than an API server (<https://kubernetes.io/releases/version-skew-policy/>).
const KUBELET_SKEW: u32 = 3;

/// What the checks read in a cluster. One that could not be read does not keep the others from their findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradePreflight {
    /// The versions of the kubelets, by Node: `v1.36.3`.
    pub kubelets: ObservedValue<BTreeMap<String, String>>,
    /// The deprecated APIs that clients requested from an API server since it started.
    pub deprecated_apis: ObservedValue<BTreeSet<DeprecatedApi>>,
    /// The admission webhooks that do not respond, and that API servers ask about what they write themselves.
    pub silent_webhooks: ObservedValue<BTreeSet<SilentWebhook>>,
}

impl Default for UpgradePreflight {
    /// Nothing would fail.
    fn default() -> Self {
        Self {
            kubelets: ObservedValue::Known(BTreeMap::new()),
            deprecated_apis: ObservedValue::Known(BTreeSet::new()),
            silent_webhooks: ObservedValue::Known(BTreeSet::new()),
        }
    }
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

/// Whether the next change of a cluster begins its upgrade to another minor version, so that a pass needs what the checks read. While a component is not
/// ready, nothing begins.
#[must_use]
pub fn begins_minor_upgrade(documents: &Documents, cluster: &Cluster) -> bool {
    let (Some(id), Some(wanted)) = (cluster.id(), find(&cluster.spec.version)) else { return false };
    if !cluster.is_changeable() || cluster.birth().is_none() {
        return false;
    }
    let staying = || documents.components_of(id).filter(|(_, component)| !component.is_leaving());
    let releases = || staying().filter_map(|(_, component)| find(&component.spec.version));
    let (Some(oldest), Some(newest)) = (releases().min(), releases().max()) else { return false };
    let mut statuses = staying().map(|(_, component)| component.status.as_ref());
    newest.minor() < oldest.next_towards(&wanted).minor()
        && statuses.all(|status| status.is_some_and(|status| condition::is_true(&status.conditions, "Ready")))
}

/// Returns what keeps a cluster from its upgrade to the next minor version.
pub(crate) fn blocker(tenant: &Tenant, seen: &PassObservation, to: Release) -> Option<PreflightBlocker> {
    let spec = &tenant.document.spec.upgrade;
    if PreflightCheck::ALL.iter().all(|check| spec.ignores(*check)) {
        return None;
    }
    let Some(preflight) = seen.preflights.get(tenant.id) else {
        return Some(PreflightBlocker::Unknown { version: to, why: String::from("it was not asked yet") });
    };
    let findings = preflight.findings(to, tenant.cluster.release, spec);
    if !findings.is_empty() {
        return Some(PreflightBlocker::Failed { version: to, findings });
    }
    let unknown = preflight.unknown(spec);
    (!unknown.is_empty()).then(|| PreflightBlocker::Unknown { version: to, why: joined(unknown, "; ") })
}

impl UpgradePreflight {
    /// Returns what would fail with a minor version, without what is to be ignored. An API server that is replaced forgets who requested what, so
    /// deprecated APIs are compared with the release at the end of the upgrade.
    fn findings(&self, to: Release, wanted: Release, spec: &UpgradeSpec) -> Vec<PreflightFinding> {
        let old = |version: &&String| reported_minor(version).is_some_and(|minor| minor + KUBELET_SKEW < to.minor());
        let kubelets = self.kubelets.known().into_iter().flatten().filter(|(_, version)| old(version));
        let kubelets: Vec<String> = kubelets.map(|(node, version)| format!("{node} ({version})")).collect();
        let requested = self.deprecated_apis.known().into_iter().flatten();
        let removed = requested.filter(|api| api.removed_in <= wanted.minor());
        let resources: Vec<String> = removed.map(|api| api.resource.clone()).collect();
        let silent: Vec<SilentWebhook> = self.silent_webhooks.known().into_iter().flatten().cloned().collect();
        let minor = wanted.minor();
        let found = [
            (!resources.is_empty()).then_some(PreflightFinding::DeprecatedApis { minor, resources }),
            (!kubelets.is_empty()).then_some(PreflightFinding::KubeletVersions { minor: to.minor(), kubelets }),
            (!silent.is_empty()).then_some(PreflightFinding::Webhooks(silent)),
        ];
        found.into_iter().flatten().filter(|finding| !spec.ignores(finding.check())).collect()
    }

    /// Returns the checks that could not be made, and why, without those that are to be ignored.
    fn unknown(&self, spec: &UpgradeSpec) -> Vec<String> {
        let read = [
            (PreflightCheck::DeprecatedApis, why(&self.deprecated_apis)),
            (PreflightCheck::KubeletVersions, why(&self.kubelets)),
            (PreflightCheck::Webhooks, why(&self.silent_webhooks)),
        ];
        let unknown = read.into_iter().filter(|(check, _)| !spec.ignores(*check));
        unknown.filter_map(|(check, why)| Some(format!("{check}: {}", why?))).collect()
    }
}

fn why<T>(read: &ObservedValue<T>) -> Option<&str> {
    match read {
        ObservedValue::Known(_) => None,
        ObservedValue::Unreachable { why, .. } => Some(why),
    }
}

#[cfg(test)]
mod tests {
    use alloc::{borrow::ToOwned, string::ToString};

    use super::*;

    fn preflight() -> UpgradePreflight {
        let kubelets = [("w1", "v1.34.4"), ("w2", "v1.33.9"), ("w3", "v1.37.0-beta.1"), ("w4", "unknown")];
        let api = |resource: &str, removed_in| DeprecatedApi { resource: resource.to_owned(), removed_in };
        let silent = SilentWebhook {
            configuration: "validatingwebhookconfiguration/policies".to_owned(),
            name: "check.example.com".to_owned(),
            service: "policies/webhook".to_owned(),
        };
        let apis = [api("a.v1beta1.example.com", 37), api("b.v1beta1.example.com", 38)];
        UpgradePreflight {
            kubelets: ObservedValue::Known(
                kubelets.map(|(node, version)| (node.to_owned(), version.to_owned())).into(),
            ),
            deprecated_apis: ObservedValue::Known(apis.into()),
            silent_webhooks: ObservedValue::Known([silent].into()),
        }
    }

    fn texts((to, wanted): (&str, &str), ignored: &[PreflightCheck]) -> Vec<String> {
        let spec = UpgradeSpec { ignore_preflight_errors: ignored.to_vec() };
        let (to, wanted) = (find(to).unwrap(), find(wanted).unwrap());
        preflight().findings(to, wanted, &spec).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_check_names_what_would_fail() {
        let [apis, kubelets, webhooks] = texts(("1.37.0", "1.37.0"), &[]).try_into().unwrap();
        assert!(apis.contains("a.v1beta1.example.com") && !apis.contains("b.v1beta1"), "{apis}");
        assert!(kubelets.contains("w2 (v1.33.9)") && !kubelets.contains("w1"), "{kubelets}");
        assert!(webhooks.contains("check.example.com") && webhooks.contains("policies/webhook"), "{webhooks}");
    }

    #[test]
    fn what_the_next_version_still_serves_is_no_finding() {
        let found = texts(("1.36.3", "1.36.3"), &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("check.example.com"), "{found:?}");
    }

    /// The API servers on the way are replaced, and remember no requests.
    #[test]
    fn what_only_the_last_version_does_not_serve_is_found_at_the_first_step() {
        let found = texts(("1.36.3", "1.37.0"), &[]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("a.v1beta1.example.com, which 1.37 does not serve"), "{found:?}");
    }

    #[test]
    fn a_check_that_cannot_be_made_can_be_ignored() {
        let silent = ObservedValue::unreachable("no response in time");
        let preflight = UpgradePreflight { deprecated_apis: silent, ..UpgradePreflight::default() };
        let unknown =
            |ignored: &[PreflightCheck]| preflight.unknown(&UpgradeSpec { ignore_preflight_errors: ignored.to_vec() });
        assert_eq!(unknown(&[]), ["DeprecatedAPIs: no response in time"]);
        assert_eq!(unknown(&[PreflightCheck::DeprecatedApis]), Vec::<String>::new());
    }

    #[test]
    fn a_check_is_ignored_by_its_name() {
        assert_eq!(texts(("1.37.0", "1.37.0"), &PreflightCheck::ALL), Vec::<String>::new());
        assert_eq!(texts(("1.37.0", "1.37.0"), &[PreflightCheck::Webhooks]).len(), 2);
        assert_eq!(
            texts(("1.37.0", "1.37.0"), &[PreflightCheck::DeprecatedApis, PreflightCheck::KubeletVersions]).len(),
            1
        );
    }
}
