//! The labels that a kubelet may set on its Node (the admission plugin `NodeRestriction`).

/// The prefixes of `kubernetes.io` and `k8s.io` that a kubelet may use.
const KUBELET_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The labels of `kubernetes.io` and `k8s.io` that a kubelet may set.
const KUBELET_LABELS: [&str; 10] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Whether a kubelet may set the label with this key on its own Node.
#[must_use]
pub fn is_kubelet_label(key: &str) -> bool {
    let prefix = key.rsplit_once('/').map(|(prefix, _)| prefix);
    let of = |domain: &str| prefix.is_some_and(|prefix| prefix == domain || prefix.ends_with(&format!(".{domain}")));
    if of("node-restriction.kubernetes.io") {
        return false;
    }
    let is_known = KUBELET_PREFIXES.iter().any(|taken| of(taken)) || KUBELET_LABELS.contains(&key);
    is_known || !(of("kubernetes.io") || of("k8s.io"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_sets_only_its_own_labels_of_kubernetes() {
        for key in ["a", "example.com/rack", "node.kubernetes.io/pool", "topology.kubernetes.io/zone"] {
            assert!(is_kubelet_label(key), "{key}");
        }
        for key in ["node-restriction.kubernetes.io/a", "a.node-restriction.kubernetes.io/a", "k8s.io/a"] {
            assert!(!is_kubelet_label(key), "{key}");
        }
        assert!(!is_kubelet_label("node-role.kubernetes.io/worker"));
    }
}
