//! The Kubernetes releases that Keelway runs, and the versions of other programs that belong to each.

/// A Kubernetes release with the versions that were tested with it.
///
/// The rows follow kubeadm's constants at each tag
/// (`cmd/kubeadm/app/constants/constants.go`: `DefaultEtcdVersion`, `CoreDNSVersion`, `PauseVersion`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The version in the notation of `Cluster.spec.version`: `1.37.0`.
    pub kubernetes: &'static str,
    /// The tag of the etcd image, including the packaging revision.
    pub etcd: &'static str,
    /// The tag of the CoreDNS image.
    pub coredns: &'static str,
    /// The tag of the sandbox image.
    pub pause: &'static str,
}

/// Every release, oldest first.
pub const RELEASES: [Release; 4] = [
    Release { kubernetes: "1.34.4", etcd: "3.6.5-0", coredns: "v1.12.1", pause: "3.10.1" },
    Release { kubernetes: "1.35.4", etcd: "3.6.6-0", coredns: "v1.13.1", pause: "3.10.1" },
    Release { kubernetes: "1.36.3", etcd: "3.6.8-0", coredns: "v1.14.2", pause: "3.10.2" },
    Release { kubernetes: "1.37.0", etcd: "3.7.0-0", coredns: "v1.14.6", pause: "3.10.2" },
];

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

/// Returns the release with this version, if Keelway runs it.
#[must_use]
pub fn find(version: &str) -> Option<&'static Release> {
    RELEASES.iter().find(|release| release.kubernetes == version)
}

/// Returns the newest release, which is the default for new clusters.
#[must_use]
pub fn newest() -> &'static Release {
    let [.., newest] = &RELEASES;
    newest
}

/// Returns all versions, for messages.
#[must_use]
pub fn names() -> String {
    RELEASES.map(|release| release.kubernetes).join(", ")
}

impl Release {
    /// Returns the minor version of Kubernetes: 37 for 1.37.0.
    #[must_use]
    pub fn minor(&self) -> u32 {
        let minor = self.kubernetes.split('.').nth(1);
        minor.and_then(|minor| minor.parse().ok()).unwrap_or_default()
    }

    /// Returns whether a cluster of this release may change to another one: to the same or the next minor version.
    #[must_use]
    pub fn may_become(&self, other: &Self) -> bool {
        other.minor() == self.minor() || other.minor() == self.minor() + 1
    }

    /// Returns the image of a Kubernetes program, such as `kube-apiserver`.
    #[must_use]
    pub fn kubernetes_image(&self, program: &str, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), program, &format!("v{}", self.kubernetes))
    }

    /// Returns the etcd image.
    #[must_use]
    pub fn etcd_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), "etcd", self.etcd)
    }

    /// Returns the CoreDNS image, whose path in the registry has one more element than the others.
    #[must_use]
    pub fn coredns_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), "coredns/coredns", self.coredns)
    }

    /// Returns the image with the files that a worker runs outside containers: `/usr/local/bin/kubelet` and the CNI plugins in `/opt/cni/bin`.
    #[must_use]
    pub fn node_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(OWN_REGISTRY), "node", &format!("v{}", self.kubernetes))
    }

    /// Returns the image of sandboxes.
    #[must_use]
    pub fn pause_image(&self, registry: Option<&str>) -> String {
        reference(registry.unwrap_or(KUBERNETES_REGISTRY), "pause", self.pause)
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
        assert_eq!(RELEASES.map(|release| release.minor()), [34, 35, 36, 37]);
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
