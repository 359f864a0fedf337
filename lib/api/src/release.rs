//! The Kubernetes releases that Keelway runs, and the versions of other programs that belong to each.

use core::fmt;

/// A minor version of Kubernetes, with the versions that were tested with it.
///
/// The rows follow kubeadm's constants at the tag of the newest tested patch release
/// (`cmd/kubeadm/app/constants/constants.go`: `DefaultEtcdVersion`, `CoreDNSVersion`, `PauseVersion`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinorRelease {
    /// The number of the minor version: 37 for 1.37.
    pub minor: u32,
    /// The newest tested patch release, in the notation of `Cluster.spec.version`: `1.37.0`.
    pub tested: &'static str,
    /// The tag of the etcd image, including the packaging revision.
    pub etcd: &'static str,
    /// The tag of the CoreDNS image.
    pub coredns: &'static str,
    /// The tag of the sandbox image.
    pub pause: &'static str,
}

/// Every supported minor version, oldest first.
pub static MINORS: [MinorRelease; 4] = [
    MinorRelease { minor: 34, tested: "1.34.4", etcd: "3.6.5-0", coredns: "v1.12.1", pause: "3.10.1" },
    MinorRelease { minor: 35, tested: "1.35.4", etcd: "3.6.6-0", coredns: "v1.13.1", pause: "3.10.1" },
    MinorRelease { minor: 36, tested: "1.36.3", etcd: "3.6.8-0", coredns: "v1.14.2", pause: "3.10.2" },
    MinorRelease { minor: 37, tested: "1.37.0", etcd: "3.7.0-0", coredns: "v1.14.6", pause: "3.10.2" },
];

/// A patch release of Kubernetes of a supported minor version. Its text is that of `Cluster.spec.version`: `1.37.0`. Older releases come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// The row of its minor version.
    pub row: &'static MinorRelease,
    /// The number of the patch release: 0 for 1.37.0.
    pub patch: u32,
}

/// The tag of the haproxy image, the same for every release. It is the long-term branch of Debian 12.
pub const HAPROXY: &str = "2.6.12";

/// The tag of the metrics-server image, the same for every release: 0.9 supports Kubernetes 1.31 and later.
pub const METRICS_SERVER: &str = "v0.9.0";

/// The tag of Keelway's own images. All programs of the workspace are released together.
pub const KEELWAY: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// The release of documents that record none: v0.1.0 did not record it.
pub const KEELWAY_UNRECORDED: &str = "v0.1.0";

/// The registry of Kubernetes' images.
const KUBERNETES_REGISTRY: &str = "registry.k8s.io";
/// The registry of the official haproxy image.
const HAPROXY_REGISTRY: &str = "docker.io/library";
/// The registry of Keelway's images.
const OWN_REGISTRY: &str = "registry.keelway.dev";

/// The number of digits of a patch version. `crd` has the same limit.
const MOST_DIGITS: usize = 3;

/// Returns the release with this version, such as 1.37.0, if its minor version is supported.
#[must_use]
pub fn find(version: &str) -> Option<Release> {
    let (minor, patch) = version.strip_prefix("1.")?.split_once('.')?;
    let row = MINORS.iter().find(|row| number(minor) == Some(row.minor))?;
    Some(Release { row, patch: number(patch)? })
}

/// Returns the minor version of a program that reports this version, such as `v1.36.3`: 36. It may be one that is not supported.
#[must_use]
pub fn reported_minor(version: &str) -> Option<u32> {
    version.strip_prefix("v1.")?.split('.').next()?.parse().ok()
}

/// A number as semantic versions have it: without a sign and without leading zeros.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.len() <= MOST_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_plain && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok()).flatten()
}

/// Returns the newest tested release, which is the default for new clusters.
#[must_use]
pub fn newest() -> Release {
    let [.., newest] = &MINORS;
    newest.newest_tested()
}

/// Returns the version of the newest tested release.
#[must_use]
pub fn newest_version() -> &'static str {
    newest().row.tested
}

/// Returns the supported versions, for messages.
#[must_use]
pub fn names() -> String {
    format!("{}, such as {}", MINORS.map(|row| format!("1.{}.x", row.minor)).join(", "), newest())
}

impl MinorRelease {
    /// Returns its newest tested patch release.
    #[must_use]
    pub fn newest_tested(&'static self) -> Release {
        let patch = self.tested.rsplit('.').next().and_then(number);
        Release { row: self, patch: patch.unwrap_or_default() }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.row.minor, self.patch)
    }
}

impl Release {
    /// Returns the minor version of Kubernetes: 37 for 1.37.0.
    #[must_use]
    pub fn minor(&self) -> u32 {
        self.row.minor
    }

    /// Returns whether this release of Keelway was tested with the patch release, or with a newer one of the same minor version.
    #[must_use]
    pub fn is_tested(&self) -> bool {
        self.patch <= self.row.newest_tested().patch
    }

    /// Returns whether a cluster of this release may change to another one in one step: to the same or the next minor version.
    #[must_use]
    pub fn may_become(&self, other: &Self) -> bool {
        other.minor() == self.minor() || other.minor() == self.minor() + 1
    }

    /// Returns the release that a cluster of this release runs next on its way to a wanted one: the wanted one if that is of the same or of the next
    /// minor version, or else the newest tested release of the next minor version.
    #[must_use]
    pub fn next_towards(&self, wanted: &Self) -> Self {
        let next = MINORS.iter().find(|row| row.minor == self.minor() + 1);
        let skipped = next.filter(|next| next.minor < wanted.minor());
        skipped.map_or(*wanted, MinorRelease::newest_tested)
    }

    /// Returns the image of a Kubernetes program, such as `kube-apiserver`.
    #[must_use]
    pub fn kubernetes_image(&self, program: &str, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), program, &format!("v{self}"))
    }

    /// Returns the etcd image.
    #[must_use]
    pub fn etcd_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), "etcd", self.row.etcd)
    }

    /// Returns the CoreDNS image, whose path in the registry has one more element than the others.
    #[must_use]
    pub fn coredns_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), "coredns/coredns", self.row.coredns)
    }

    /// Returns the image with the files that a worker runs outside containers: `/usr/local/bin/kubelet` and the CNI plugins in `/opt/cni/bin`.
    #[must_use]
    pub fn node_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(OWN_REGISTRY), "node", &format!("v{self}"))
    }

    /// Returns the image of sandboxes.
    #[must_use]
    pub fn pause_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), "pause", self.row.pause)
    }
}

/// Returns the haproxy image.
#[must_use]
pub fn haproxy_image(registry: Option<&str>) -> String {
    reference(registry.unwrap_or(HAPROXY_REGISTRY), "haproxy", HAPROXY)
}

/// Returns the metrics-server image.
#[must_use]
pub fn metrics_server_image(registry: Option<&str>) -> String {
    reference(registry.unwrap_or(KUBERNETES_REGISTRY), "metrics-server/metrics-server", METRICS_SERVER)
}

/// Returns the image of Keelway's components of a cluster, for one release. The cluster-controller, gateway and egress are one program.
#[must_use]
pub fn cluster_controller_image(registry: Option<&str>, version: &str) -> String {
    reference(registry.unwrap_or(OWN_REGISTRY), "cluster-controller", version)
}

/// Returns the image of the fleet-controller, for one release.
#[must_use]
pub fn fleet_controller_image(registry: Option<&str>, version: &str) -> String {
    reference(registry.unwrap_or(OWN_REGISTRY), "fleet-controller", version)
}

/// Returns the image of the fleet agent.
#[must_use]
pub fn fleet_agent_image(registry: Option<&str>) -> String {
    reference(registry.unwrap_or(OWN_REGISTRY), "fleet-agent", KEELWAY)
}

/// Returns the image of the agent.
#[must_use]
pub fn hypervisor_agent_image(registry: Option<&str>) -> String {
    reference(registry.unwrap_or(OWN_REGISTRY), "hypervisor-agent", KEELWAY)
}

/// Returns the image of the manager.
#[must_use]
pub fn manager_image(registry: Option<&str>) -> String {
    reference(registry.unwrap_or(OWN_REGISTRY), "manager", KEELWAY)
}

fn reference(registry: &str, name: &str, tag: &str) -> String {
    format!("{}/{name}:{tag}", registry.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_follow_each_other() {
        assert_eq!(MINORS.map(|row| row.minor), [34, 35, 36, 37]);
        for row in &MINORS {
            let tested = find(row.tested).unwrap();
            assert_eq!((tested, tested.to_string()), (row.newest_tested(), row.tested.to_owned()));
        }
    }

    #[test]
    fn every_patch_release_of_a_supported_minor_version_is_found() {
        let found = find("1.37.12").unwrap();
        assert_eq!((found.minor(), found.patch, found.is_tested()), (37, 12, false));
        assert!(find("1.36.1").unwrap().is_tested());
        assert!(find("1.36.9") < find("1.36.10") && find("1.36.10") < find("1.37.0"));
        for unknown in [
            "1.33.9",
            "1.38.0",
            "2.37.0",
            "1.37",
            "v1.37.0",
            "1.37.01",
            "1.37.0-rc.0",
            "1.37.+1",
            "1.37.1000",
            "1.37.",
            "",
        ] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn no_minor_version_is_skipped() {
        let next = |from: &str, to: &str| find(from).unwrap().next_towards(&find(to).unwrap()).to_string();
        assert_eq!(next("1.34.9", "1.37.2"), "1.35.4");
        assert_eq!(next("1.35.4", "1.37.2"), "1.36.3");
        assert_eq!(next("1.36.3", "1.37.2"), "1.37.2");
        assert_eq!(next("1.37.2", "1.37.1"), "1.37.1");
    }

    #[test]
    fn images_have_their_full_public_names() {
        let release = newest();
        assert_eq!(release.kubernetes_image("kube-apiserver", None), "registry.k8s.io/kube-apiserver:v1.37.0");
        assert_eq!(release.etcd_image(None), "registry.k8s.io/etcd:3.7.0-0");
        assert_eq!(haproxy_image(None), "docker.io/library/haproxy:2.6.12");
        assert_eq!(release.coredns_image(None), "registry.k8s.io/coredns/coredns:v1.14.6");
        assert_eq!(metrics_server_image(None), "registry.k8s.io/metrics-server/metrics-server:v0.9.0");
        assert_eq!(release.node_image(None), "registry.keelway.dev/node:v1.37.0");
        assert_eq!(
            cluster_controller_image(None, KEELWAY),
            ["registry.keelway.dev/cluster-controller:", KEELWAY].concat()
        );
        assert_eq!(hypervisor_agent_image(None), ["registry.keelway.dev/hypervisor-agent:", KEELWAY].concat());
        assert!(KEELWAY.starts_with('v') && KEELWAY.split('.').count() == 3, "{KEELWAY}");
    }

    #[test]
    fn a_private_registry_replaces_every_host() {
        let registry = Some("registry.example.com/mirror/");
        assert_eq!(newest().pause_image(registry), "registry.example.com/mirror/pause:3.10.2");
        assert_eq!(haproxy_image(registry), "registry.example.com/mirror/haproxy:2.6.12");
        let own = cluster_controller_image(registry, KEELWAY);
        assert_eq!(own, ["registry.example.com/mirror/cluster-controller:", KEELWAY].concat());
    }
}
